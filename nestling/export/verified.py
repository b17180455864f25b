"""Write a model to a file and keep it only if the file gives the model's outputs."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.cut import Plan
from nestling.errors import ExportError, NestlingError, first_line
from nestling.export.file_formats import Format
from nestling.files import write_whole
from nestling.model_inputs import mapped
from nestling.seeds import torch_stream

MAX_DIFFERENCE = 1e-5  # relative to the largest output where that is above 1: float32 has seven digits
SAMPLES = 3


def write_verified(
    model: nn.Module, plan: Plan, example: Any, path: Path, form: Format, *, tokens: int = 0, samples: int = SAMPLES
) -> float:
    """Write a model to a file; return the largest difference between its outputs and those of the file.

    Random samples are used. Where the outputs differ by more than 1e-5 (of the largest output, if that is above
    1), or the model cannot be exported, `ExportError` is raised and no file is written.

    Parameters
    ----------
    model
        A sub-model in evaluation mode, on the CPU.
    plan
        Its plan, which formats that hold tensors alone store beside them.
    example
        Inputs of the model (see `nestling.model_inputs`).
    path, form
        The file and its format.
    tokens
        The number of words, where inputs are numbers of words.
    samples
        How many random samples; a file that trains takes batches of this size only.

    Examples
    --------
    >>> import nestling
    >>> from nestling.export.file_formats import FORMATS
    >>> net = nn.Sequential(nn.Linear(4, 2)).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_verified(net, Plan(), torch.zeros(1, 4), Path(folder, "net.pt2"), FORMATS["torch"]) <= 1e-5
    True
    """
    inputs = random_inputs(example, tokens, samples)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        draft = Path(folder, path.name)
        try:
            form.write(model, plan, inputs, draft)
            answers = form.answers(draft, model, inputs)
        except NestlingError:
            raise
        except Exception as problem:  # exporters run the model's own code and raise errors of any type
            raise ExportError(
                f"the sub-model cannot be exported as {form.name}: {type(problem).__name__}: {first_line(problem)}"
            ) from problem
        difference = largest_difference(form.expected(model, inputs), answers)
        if not difference <= MAX_DIFFERENCE:
            raise ExportError(
                f"the outputs of the exported file differ from the sub-model's by {difference:.2g}, more than "
                f"{MAX_DIFFERENCE:g}, so it was not kept: use another format, such as safetensors"
            )
        write_whole(path, draft.read_bytes())
    return difference


def random_inputs(example: Any, tokens: int = 0, samples: int = SAMPLES) -> Any:
    """Return random samples, in the shape and types of an example.

    >>> random_inputs(torch.zeros(1, 4)).shape, int(random_inputs(torch.zeros(1, 4, dtype=torch.long), 7).max()) < 7
    (torch.Size([3, 4]), True)
    """
    draw = torch_stream(0, "export")

    def rows(tensor: Tensor) -> Tensor:
        shape = (samples, *tensor.shape[1:])
        if tensor.is_floating_point():
            return torch.randn(shape, generator=draw).to(tensor.dtype)
        return torch.randint(max(1, tokens or int(tensor.max()) + 1), shape, generator=draw).to(tensor.dtype)

    return mapped(rows, example)


def largest_difference(expected: list[Tensor], answers: list[Tensor]) -> float:
    """Return the largest difference between outputs, relative to the largest one where that is above 1.

    >>> largest_difference([torch.tensor([1.0, 200.0])], [torch.tensor([1.0, 201.0])])
    0.005
    """
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in answers]:
        raise ExportError(
            f"the exported file returns outputs of shapes {[tuple(tensor.shape) for tensor in answers]}, "
            f"and the sub-model {[tuple(tensor.shape) for tensor in expected]}"
        )
    differences = []
    for ours, theirs in zip(expected, answers, strict=True):
        scale = max(1.0, float(ours.abs().max()))
        difference = float((ours.double() - theirs.double()).abs().max()) / scale
        differences.append(difference)
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)
