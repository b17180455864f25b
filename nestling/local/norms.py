"""Static batch normalisation (HeteroFL, §3): batch statistics while training, statistics asked for when testing.

Running statistics gathered by clients of different widths would contradict each other, so none are kept while
training. Before a model is tested, clients run their samples through it once and tell the mean over their batches of
each layer's mean and variance. Normalisation in training mode uses the statistics of the batch alone, so what one
client tells does not depend on any other, and the server's average over all batches is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nestling.local.device import exact


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The layers of a model that normalise by statistics of the batch, by name."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            yield name, module


def static(model: nn.Module) -> None:
    """Keep a model from changing its running statistics while it trains."""
    for _, norm in batch_norms(model):
        norm.track_running_stats = False


@torch.no_grad()
def statistics(model: nn.Module, batches: Iterable[Tensor]) -> tuple[dict[str, Tensor], int]:
    """Return the sums over batches of every norm's mean and unbiased variance, and the number of batches.

    Only the norms are in training mode: a dropout layer or a Scaler would change what they see.

    Returns
    -------
    tuple
        State name → sum in double precision on the CPU, of shape (channels,); how many batches it is over.
    """
    model.eval()
    norms = list(batch_norms(model))
    before = [(norm.track_running_stats, norm.momentum) for _, norm in norms]
    for _, norm in norms:
        norm.train()
        norm.track_running_stats = True
        norm.momentum = 1.0  # the running statistics become those of the last batch, in the variance's unbiased form
    sums: dict[str, Tensor] = {}
    uses: dict[str, int] = {}

    def note(name: str, norm: _BatchNorm, *_: object) -> None:
        for what in ("running_mean", "running_var"):
            value = exact(getattr(norm, what))  # a copy, as the next batch writes over it
            sums[f"{name}.{what}"] = sums[f"{name}.{what}"] + value if f"{name}.{what}" in sums else value
            uses[f"{name}.{what}"] = uses.get(f"{name}.{what}", 0) + 1

    hooks = [norm.register_forward_hook(partial(note, name)) for name, norm in norms]
    count = 0
    try:
        for batch in batches:
            model(batch)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        for (_, norm), (tracks, momentum) in zip(norms, before, strict=True):
            norm.track_running_stats, norm.momentum = tracks, momentum
    # a norm that is used twice in a forward tells the mean of both uses
    return {name: value.cpu().double() * count / uses[name] for name, value in sums.items()}, count


def averaged(parts: Iterable[tuple[Mapping[str, Tensor], int]]) -> dict[str, Tensor]:
    """Return the statistics of all batches from the sums of several clients, in the order given.

    >>> averaged([({"norm.running_mean": torch.tensor([2.0])}, 2), ({"norm.running_mean": torch.tensor([4.0])}, 1)])
    {'norm.running_mean': tensor([2.])}
    """
    totals: dict[str, Tensor] = {}
    batches = 0
    for sums, count in parts:
        batches += count
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return {name: total / batches for name, total in totals.items()}
