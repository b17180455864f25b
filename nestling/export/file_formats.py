"""The formats of exported files: how each is written, and how it is read again and run.

None of them is a pickle: safetensors and ONNX hold numbers and graphs, PyTorch's exported program is an archive of JSON
and raw weights, and ExecuTorch's files are flat buffers.

ExecuTorch's training extension is experimental. A program computes the loss and its gradients for batches of one size;
some of its kernels are wrong (those of max pooling in version 1.5), so gradients are compared with PyTorch's.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.axes.shapes import outputs_of
from nestling.axes.skeleton import copy_with
from nestling.cut import Plan
from nestling.cut.wire import load, save
from nestling.errors import ExportError, nearest
from nestling.events import report
from nestling.export.training_step import loss_and_gradients
from nestling.imported import need
from nestling.model_inputs import Inputs, arguments, chosen, count, forward, logits_of, tensors_of


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes
    ----------
    name, suffix, about
        Its name, the usual end of file names, and a sentence on what it is.
    write
        (model, plan, inputs, path): write the model, which is called with `inputs`.
    answers
        (path, model, inputs) → the outputs of the file. Only formats of tensors alone use the model's classes.
    usage
        Lines of Python that load the file at PATH.
    expected
        (model, inputs) → the outputs that the file must have, too.
    trains
        Whether the file trains: its model is a `TrainingStep`, whose inputs are a batch of inputs and targets.
    """

    name: str
    suffix: str
    about: str
    write: Callable[[nn.Module, Plan, Any, Path], None]
    answers: Callable[[Path, nn.Module, Any], list[Tensor]]
    usage: tuple[str, ...]
    expected: Callable[[nn.Module, Any], list[Tensor]] = lambda model, inputs: outputs_of(forward(model, inputs))
    trains: bool = False


def format_of(name: str | None, path: Path) -> Format:
    """Return a format by its name, or by the end of a file name.

    >>> format_of(None, Path("small.onnx")).name, format_of("torch", Path("small.bin")).name
    ('onnx', 'torch')
    >>> format_of(None, Path("small.train.pte")).name
    'executorch-training'
    """
    if name is None:
        longest = sorted(FORMATS.values(), key=lambda form: -len(form.suffix))
        form = next((form for form in longest if path.name.endswith(form.suffix)), None)
        if form is None:
            raise ExportError(
                f"the format does not follow from the name {path.name!r}: end it in "
                f"{', '.join(form.suffix for form in FORMATS.values())}, or give --format {'|'.join(FORMATS)}"
            )
        return form
    if name not in FORMATS:
        raise ExportError(f"there is no format {name!r}{nearest(name, FORMATS)}")
    return FORMATS[name]


def _write_tensors(model: nn.Module, plan: Plan, _inputs: Any, path: Path) -> None:
    save(path, model.state_dict(), plan)


def _answers_of_tensors(path: Path, model: nn.Module, inputs: Any) -> list[Tensor]:
    state, _ = load(path)
    fresh = copy_with(model, lambda name, old: torch.zeros_like(old) if name in state else old.detach())
    fresh.load_state_dict(state)
    return outputs_of(forward(fresh, inputs))


@contextlib.contextmanager
def _logits_alone(model: nn.Module) -> Iterator[None]:
    """Let a model return its logits alone, where it returns them among others, as those of Hugging Face do.

    A wrapper would hide the names of its arguments, which exporters need; so the result is replaced by a hook.
    """
    handle = model.register_forward_hook(lambda _module, _inputs, output: logits_of(output))
    try:
        yield
    finally:
        handle.remove()


def _program(model: nn.Module, inputs: Inputs, fixed: bool = False) -> torch.export.ExportedProgram:
    """Return the exported program of a model for batches of any size, or `fixed` at that of the inputs."""
    args, kwargs = arguments(inputs)
    batch = None if fixed else {0: torch.export.Dim("batch")}
    dynamic: Any = dict.fromkeys(kwargs, batch) or (batch,) * len(args)
    with _quiet(), _logits_alone(model):
        program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic)
    program.example_inputs = None  # PyTorch would store them as a pickle
    return program


def _with_any_batch(model: nn.Module, inputs: Any) -> tuple[torch.export.ExportedProgram, bool]:
    """Return the program of a model, and whether its batch is fixed, as the model's code may require."""
    try:
        return _program(model, inputs), False
    except Exception as problem:
        program = _program(model, inputs, fixed=True)
        rows = count(inputs)
        report("batch fixed", f"the exported program takes batches of {rows} samples alone: {type(problem).__name__}")
        return program, True


def _write_program(model: nn.Module, _plan: Plan, inputs: Any, path: Path) -> None:
    program, _ = _with_any_batch(model, inputs)
    with _quiet():
        torch.export.save(program, path)


def _answers_of_program(path: Path, _model: nn.Module, inputs: Any) -> list[Tensor]:
    with _quiet():
        return outputs_of(forward(torch.export.load(path).module(), inputs))


def _write_onnx(model: nn.Module, _plan: Plan, inputs: Any, path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, "onnx", "export as ONNX needs", ExportError)
    program, _ = _with_any_batch(model, inputs)
    with _quiet():
        torch.onnx.export(program, f=path, dynamo=True, external_data=False, verbose=False)


def _answers_of_onnx(path: Path, _model: nn.Module, inputs: Any) -> list[Tensor]:
    runtime = need("onnxruntime", "onnx", "export as ONNX needs", ExportError)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    if not isinstance(inputs, dict) or inputs.keys() != set(names):
        inputs = dict(zip(names, tensors_of(inputs), strict=True))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]


def _write_executorch(model: nn.Module, _plan: Plan, inputs: Any, path: Path) -> None:
    exir = need("executorch.exir", "executorch", "export for ExecuTorch needs", ExportError)
    first = chosen(inputs, slice(1))  # devices answer one sample at a time
    with _quiet():
        path.write_bytes(exir.to_edge(_program(model, first, fixed=True)).to_executorch().buffer)


def _answers_of_executorch(path: Path, _model: nn.Module, inputs: Any) -> list[Tensor]:
    runtime = need("executorch.runtime", "executorch", "export for ExecuTorch needs", ExportError).Runtime.get()
    method = runtime.load_program(path).load_method("forward")
    tensors = tensors_of(inputs)
    rows = [method.execute([tensor[k : k + 1].contiguous() for tensor in tensors]) for k in range(len(tensors[0]))]
    return [torch.cat(parts) for parts in zip(*rows, strict=True)]


def _write_training_program(step: nn.Module, _plan: Plan, inputs: Any, path: Path) -> None:
    exir = need("executorch.exir", "executorch", "export for ExecuTorch needs", ExportError)
    from torch.export.experimental import _export_forward_backward  # noqa: PLC0415

    with _quiet(), torch.enable_grad():
        program = _export_forward_backward(torch.export.export(step, tuple(inputs), strict=True))
        path.write_bytes(exir.to_edge(program).to_executorch().buffer)


def _answers_of_training_program(path: Path, step: nn.Module, inputs: Any) -> list[Tensor]:
    training = need("executorch.extension.training", "executorch", "export for ExecuTorch needs", ExportError)
    with _quiet():
        program = training._load_for_executorch_for_training(str(path))
        (loss,) = program.forward_backward("forward", tuple(inputs))
    gradients = program.named_gradients()
    return [loss, *(gradients[name] for name, one in step.named_parameters() if one.requires_grad)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress and the warnings of exporters, which are about their own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


FORMATS = {
    form.name: form
    for form in (
        Format(
            "safetensors",
            ".safetensors",
            "tensors and their plan, for the same model class",
            _write_tensors,
            _answers_of_tensors,
            (
                "state, plan = nestling.unpack(pathlib.Path(PATH).read_bytes())",
                "small = nestling.submodel(model, nestling.trace(model, example), plan)  # model: the whole, untrained",
                "small.load_state_dict(state)",
            ),
        ),
        Format(
            "torch",
            ".pt2",
            "an exported program of PyTorch, without the model's class",
            _write_program,
            _answers_of_program,
            ("small = torch.export.load(PATH).module()",),
        ),
        Format(
            "onnx",
            ".onnx",
            "a graph for ONNX Runtime and others",
            _write_onnx,
            _answers_of_onnx,
            (
                "session = onnxruntime.InferenceSession(PATH)",
                "session.run(None, {session.get_inputs()[0].name: inputs})",
            ),
        ),
        Format(
            "executorch",
            ".pte",
            "a program for ExecuTorch on phones and microcontrollers, for one sample",
            _write_executorch,
            _answers_of_executorch,
            ("method = executorch.runtime.Runtime.get().load_program(PATH).load_method('forward')",),
        ),
        Format(
            "executorch-training",
            ".train.pte",
            "a program for ExecuTorch that computes the loss and its gradients on a device",
            _write_training_program,
            _answers_of_training_program,
            (
                "program = executorch.extension.training._load_for_executorch_for_training(PATH)",
                "(loss,) = program.forward_backward('forward', (inputs, targets))  # a whole batch",
                "optimizer = executorch.extension.training.get_sgd_optimizer(program.named_parameters(), 0.05)",
                "optimizer.step(program.named_gradients())",
            ),
            expected=loss_and_gradients,
            trains=True,
        ),
    )
}
