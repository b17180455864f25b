"""The server's samples without labels: which of them a round uses, and what models say about them.

FedMorph, FedDF, DS-FL and Fed-ET use them (`data.public_share`, `RoundContext.public`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.cut import Plan, extract, submodel
from nestling.cut.extract import State
from nestling.data.batches import batches
from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.kernels.batch_norms import keep_frozen
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.parts.static_norms import mean_statistics, norm_sums
from nestling.safe_kernels import SafeKernels
from nestling.seeds import torch_stream

_BATCH = 100  # samples that run through a model at once, and a batch of the statistics of norms


def check_public(setup: Setup, public: ClientData | None, least: int = 1) -> None:
    """Raise an error if the server has no samples without labels, or too few."""
    count = 0 if public is None else len(public)
    if not count:
        raise ConfigError(
            f"{setup.method.name} needs samples without labels at the server: set data.public_share=0.1, say, or give "
            "public=… beside data of your own"
        )
    if count < least:
        raise ConfigError(
            f"{setup.method.name} needs at least {least} samples without labels at the server, "
            f"not {count}: set a larger data.public_share"
        )


def check_classes(setup: Setup) -> None:
    """Raise an error for tasks without classes: their models predict no probabilities."""
    if not setup.task.classes:
        raise MethodError(f"{setup.method.name} distils predicted classes, and the task {setup.task.name} has none")


def draw_public(setup: Setup, public: ClientData, number: int, count: int) -> Tensor:
    """Return the indices of the public samples that a round uses, drawn without replacement, sorted.

    Server and clients draw the same ones from the seed of the experiment, so indices need not travel.

    Parameters
    ----------
    setup, public
        The experiment, and the samples.
    number
        The number of the round.
    count
        How many samples to draw; 0 for all.
    """
    if not count or count >= len(public):
        return torch.arange(len(public), device="cpu")
    stream = torch_stream(setup.seed, "public", number)
    return torch.randperm(len(public), generator=stream)[:count].sort().values


def inputs_of(public: ClientData, chosen: Tensor, size: int, device: torch.device | None = None) -> Iterator[Tensor]:
    """Yield some of the public samples as model inputs, in batches of at most `size` (or one more)."""
    for part in batches(chosen, size):
        yield public.transform(public.batch(part)[0].to(device), None)


def public_inputs(round: RoundContext, chosen: Tensor) -> Tensor:
    """Return some public samples as inputs of a model, (samples, …)."""
    assert round.public is not None  # `check_public` requires it
    return round.public.transform(round.public.batch(chosen)[0], None)


def public_batches(round: RoundContext, size: int, first: int | None = None) -> list[Tensor]:
    """Return all public samples, or only the `first` ones, in batches of model inputs."""
    assert round.public is not None  # `check_public` requires it
    count = len(round.public) if first is None else min(first, len(round.public))
    return list(inputs_of(round.public, torch.arange(count), size))


@torch.no_grad()
def outputs_of(model: nn.Module, parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the outputs of a model in evaluation mode for some batches."""
    model.eval()
    with SafeKernels():
        for part in parts:
            yield model(part)


def predictions(model: nn.Module, parts: Iterable[Tensor]) -> Tensor:
    """Return the probabilities, (samples, classes), that a model in evaluation mode predicts for some batches."""
    return torch.cat([F.softmax(output, -1) for output in outputs_of(model, parts)])


def with_statistics(model: nn.Module, parts: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return the state of a model with the statistics of its norms measured on some batches."""
    keep_frozen(model)
    state = model.state_dict()
    with SafeKernels():
        measured = mean_statistics([norm_sums(model, parts)])
    return {name: measured[name].to(value.dtype) if name in measured else value for name, value in state.items()}


def public_logits(setup: Setup, model: nn.Module, public: ClientData, chosen: Tensor) -> Tensor:
    """Return the logits of a model for some public samples, (samples, classes), on the CPU.

    If norms are static, their statistics are first measured on the same samples; the model then has these.
    """
    device = next(model.parameters()).device
    if setup.norm_statistics:
        model.load_state_dict(with_statistics(model, inputs_of(public, chosen, _BATCH, device)))
    outputs = outputs_of(model, inputs_of(public, chosen, _BATCH, device))
    return torch.cat([setup.method.predict(output) for output in outputs]).cpu()


def with_public_statistics(round: RoundContext, state: State, chosen: Tensor) -> dict[str, Tensor]:
    """Return a state of the global model, its static norms with the statistics of some public samples."""
    setup = round.setup
    if not setup.norm_statistics:
        return dict(state)
    assert round.public is not None  # `check_public` requires it
    network = submodel(setup.model, setup.axes, Plan())
    network.load_state_dict(dict(state))
    return with_statistics(network, inputs_of(round.public, chosen, _BATCH))


def teacher_logits(round: RoundContext, update: Update, chosen: Tensor) -> Tensor:
    """Return the logits of the sub-model that a client returned for some public samples, (samples, classes)."""
    setup = round.setup
    assert round.public is not None  # `check_public` requires it
    model = submodel(setup.model, setup.cut_axes, update.plan)
    model.load_state_dict(extract(setup.cut_axes, update.plan, round.before) | update.state)
    return public_logits(setup, model, round.public, chosen)
