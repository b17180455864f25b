"""Static batch normalisation (HeteroFL, §3.2): batch statistics in training, statistics of all clients in tests.

Running statistics from clients of different widths would contradict each other, so none are kept in training. Before a
model is tested, clients run their samples through it once and return the mean and variance of every norm's inputs,
summed over batches. In training mode a norm uses the statistics of the batch alone, so the result of one client does
not depend on any other, and the server's average over all batches is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nestling.kernels.batch_norms import batch_norms
from nestling.kernels.joined_norms import NormSums, may_join, runs_of_one_shape
from nestling.methods.context import Owner, Setup
from nestling.methods.frozen import STATISTICS
from nestling.methods.part import Part
from nestling.model_inputs import Inputs


@dataclass(frozen=True)
class StaticNorms(Part):
    """Batch statistics in training; clients measure global statistics before tests."""

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Claim the running statistics of all batch norms."""
        names = (f"{name}.{buffer}".removeprefix(".") for name, _ in batch_norms(setup.model) for buffer in STATISTICS)
        return dict.fromkeys(names, "statistics")

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Stop the model from updating its running statistics."""
        del setup, ratio
        make_static(model)


def make_static(model: nn.Module) -> None:
    """Stop a model from updating its running statistics in training."""
    for _, norm in batch_norms(model):
        norm.track_running_stats = False


@torch.no_grad()
def norm_sums(model: nn.Module, batches: Iterable[Inputs], join: bool = True) -> tuple[dict[str, Tensor], int]:
    """Return the sums over batches of every norm's mean and unbiased variance, and the number of batches.

    Only the norms are in training mode: dropout or a Scaler would change their inputs. With `join`, small batches of
    one shape run through the model together, but through each norm one by one: the same statistics in less time.

    Returns
    -------
    tuple
        State name → sum in double precision on the CPU, of shape (channels,); the number of batches.

    Examples
    --------
    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> norm_sums(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0]])])[0]
    {'0.running_mean': tensor([7.], dtype=torch.float64), '0.running_var': tensor([2.], dtype=torch.float64)}
    """
    sums = NormSums()
    count = 0
    for run in runs_of_one_shape(batches):
        together = join and len(run) > 1 and may_join(model, run)
        for parts in [run] if together else [[batch] for batch in run]:
            sums.add(model, parts)
        count += len(run)
    # a norm that is used twice in a forward pass gets the mean of both uses
    return {name: value.cpu().double() * count / sums.uses[name] for name, value in sums.sums.items()}, count


def mean_statistics(parts: Iterable[tuple[Mapping[str, Tensor], int]]) -> dict[str, Tensor]:
    """Return the statistics of all batches from the sums of several clients, in the order given.

    >>> mean_statistics([({"norm.mean": torch.tensor([2.0])}, 2), ({"norm.mean": torch.tensor([4.0])}, 1)])
    {'norm.mean': tensor([2.])}
    """
    totals: dict[str, Tensor] = {}
    batches = 0
    for sums, count in parts:
        batches += count
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return {name: total / batches for name, total in totals.items()}
