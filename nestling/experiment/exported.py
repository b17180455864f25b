"""Export a run's sub-model to a file for devices, with a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.budgets import written
from nestling.data import Dataset
from nestling.errors import ExportError
from nestling.experiment.model import model_options
from nestling.experiment.simulation import Simulation
from nestling.experiment.submodel_choice import Choice
from nestling.export import SAMPLES, TrainingStep, format_of, model_card, write_verified
from nestling.export.training_step import Loss
from nestling.files import write_whole
from nestling.kernels.batch_norms import keep_frozen
from nestling.methods import Setup
from nestling.methods.parts.static_norms import make_static
from nestling.model_inputs import logits_of, tensors_of
from nestling.nets import MODELS
from nestling.tasks import Classification, Regression

if TYPE_CHECKING:
    from nestling.experiment.hub_model import HubModel
    from nestling.experiment.loaded import LoadedRun


@dataclass(frozen=True)
class Exported:
    """An exported file.

    Attributes
    ----------
    path, card, format
        The file, its model card, and its format.
    choice
        Which sub-model it holds, and what that costs.
    difference
        The largest difference between its outputs and the sub-model's.
    metric, value
        What the sub-model scores on the run's test samples; None if that is unknown.
    """

    path: Path
    card: Path
    format: str
    choice: Choice
    difference: float
    metric: str
    value: float | None


def export_submodel(loaded: LoadedRun, choice: Choice, path: Path, format: str | None) -> Exported:
    """Write a sub-model to a file, verify it, and write its model card; see `LoadedRun.export`."""
    simulation = loaded._simulation
    setup, settings = simulation.setup, simulation.settings
    form = format_of(format, path)
    card = path.with_name(f"{path.name}.md")
    if not path.parent.is_dir():
        raise ExportError(f"{str(path)!r} cannot be written: there is no directory {str(path.parent)!r}")
    if setup.private and not loaded._state.separate_global_model(setup):
        raise ExportError(
            f"clients of {setup.method.name} keep {len(setup.private)} tensors to themselves, so the server has no "
            "trained sub-model to export"
        )
    model, plan = loaded.submodel_of(choice), choice.size.plan
    tokens = setup.task.classes if setup.task.reads_classes else 0
    metric, value = loaded.tested(choice.level.ratio)
    inputs, samples = setup.example, SAMPLES
    if form.trains:
        model, inputs, samples = *_training_step(setup, model, choice.level.ratio), setup.training.batch_size
    difference = write_verified(model, plan, inputs, path, form, tokens=tokens, samples=samples)
    compared = "loss and gradients" if form.trains else "outputs"
    score = "not measured" if value is None else f"{value:.4g} on the test samples of {simulation.data.name}"
    trained = "a level that clients trained" if choice.trained else "a slice between two levels"
    facts = {
        "method": f"{setup.method.name}, {loaded.round} rounds, {setup.clients} clients, seed {setup.seed}",
        "sub-model": f"ratio {choice.level.name}, {trained}",
        metric: score,
        "parameters": f"{choice.size.parameters:,}",
        "size": f"{written('bytes', choice.size.bytes)} ({choice.size.bytes:,} bytes of tensors)",
        "MACs": f"{choice.size.macs:,} for one sample",
        "training memory": f"{written('bytes', choice.size.memory)} at batch {choice.size.batch}",
        "inputs": _inputs(simulation),
        **({"batch": f"{samples} samples, no more and no fewer"} if form.trains else {}),
        "verified": f"{compared} differ from the sub-model's by at most {difference:.2g}",
    }
    about = (
        f"A sub-model of {settings.model.name}, trained by federated learning on {simulation.data.name} with "
        f"Nestling: {form.about}."
    )
    usage = [line.replace("PATH", repr(path.name)) for line in form.usage]
    text = model_card(path.stem, about, facts, settings.to_toml(), usage)
    write_whole(card, text.encode())
    return Exported(path, card, form.name, choice, difference, metric, value)


def _training_step(setup: Setup, model: nn.Module, ratio: float) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a sub-model as clients train it, with its loss, and an example of a batch.

    Batch norms use the statistics of the batch and keep none, whatever the method does in federated training.
    """
    task, example = setup.task, setup.example
    losses: dict[type, Loss] = {Classification: F.cross_entropy, Regression: F.mse_loss}
    if type(task) not in losses or not isinstance(example, Tensor) or not example.is_floating_point():
        raise ExportError(
            f"training programs are for classification and regression on one tensor of numbers, not for {task.name}: "
            "export it for inference"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in setup.user_frozen)
    setup.method.build(model, setup, ratio)
    make_static(model)
    keep_frozen(model.train())
    with torch.no_grad():
        output = logits_of(model(example))
    targets = torch.full((len(example),), task.classes - 1) if task.classes else torch.zeros_like(output)
    return TrainingStep(model, losses[type(task)]), (example, targets)


def hub_model(loaded: LoadedRun, choice: Choice) -> HubModel:
    """Return a sub-model that huggingface_hub can save, load and push; see `LoadedRun.hub_model`."""
    from nestling.experiment.hub_model import HubModel  # noqa: PLC0415

    simulation = loaded._simulation
    setup, model = simulation.setup, simulation.settings.model
    if setup.private and not loaded._state.separate_global_model(setup):
        raise ExportError(f"clients of {setup.method.name} keep tensors to themselves: there is no trained sub-model")
    if model.name not in MODELS or model.width < 1:
        raise ExportError(
            f"models for the Hub are those of 'nestling list models' at their whole width, not {model.name!r} at "
            f"width {model.width:g}: use 'nestling export'"
        )
    small = loaded.submodel_of(choice)
    options = model_options(model.name, model.options, simulation.data)
    if not isinstance(setup.example, Tensor):
        raise ExportError("models for the Hub read one tensor: use 'nestling export' for those of several inputs")
    shape, dtype = list(setup.example.shape), str(setup.example.dtype).removeprefix("torch.")
    packed = HubModel(model.name, options, shape, dtype, choice.size.plan.to_json())
    packed.small.load_state_dict(small.state_dict())
    return packed.eval()


def _inputs(simulation: Simulation) -> str:
    """Return how a sample must look for the model."""
    example, data = simulation.setup.example, simulation.dataset
    names = example if isinstance(example, dict) else [""] * len(tensors_of(example))
    words = ", ".join(
        f"{name} {tuple(tensor.shape[1:])} of {str(tensor.dtype).removeprefix('torch.')} per sample".strip()
        for name, tensor in zip(names, tensors_of(example), strict=True)
    )
    if not isinstance(data, Dataset):
        return words
    pixels = [] if data.inputs.is_floating_point() else ["pixels divided by 255"]
    scale = [f"minus {list(data.mean)}, divided by {list(data.std)} by channel"] if data.mean else []
    return ": ".join(filter(None, [words, ", ".join(pixels + scale)]))
