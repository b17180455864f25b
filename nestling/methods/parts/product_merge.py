"""Merging low-rank adapters by their products: the mean of what clients' adapters compute (FlexLoRA, Bai et al., 2024).

The server adds up the products B A of all clients as stacked factors (FLoRA, Wang et al., 2024), which is exact. The
new factors are the best approximation of the mean by the rank of the whole adapter, exact if the rank of the mean fits.
The share of the norm that was lost is reported, and recorded as ``lost_norm`` in metrics.jsonl. Units are ordered by
singular value: the first k of them are the best approximation of rank k.

Departures
----------
- In FlexLoRA's mean, a unit that a client did not hold counts as zero, so that rounds without training would shrink the
  adapters. Here it counts as it was before the round. A round without training changes no product.
- FlexLoRA's factors are U Σ and V. Here A = c V, where c is the mean norm of the units of A before, and B = U Σ / c,
  so that the steps of clients keep their size. For embeddings, whose A begins at zero in peft, B and A change places.
- Units that the mean does not need (a mean of rank 6 in adapters of rank 16) begin again as LoRA begins, with one
  factor at zero and the other one as it was. With two zero factors they would never learn again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.axes.adapters import Adapter, adapters, other_factor
from nestling.cut.low_rank import LowRank, ProductSum
from nestling.data.federated import ClientData
from nestling.errors import ConfigError
from nestling.events import report
from nestling.methods.context import AfterMerge, Merged, RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.part import Part

_DORA = "lora_magnitude_vector"  # peft's name of DoRA's magnitudes
_EXACT = 1e-6  # a smaller share of the norm is a rounding error in single precision
_INSTEAD = "set options.merge=factors"


@dataclass
class ProductSums:
    """The sums of clients' products in a round.

    Attributes
    ----------
    sums
        For every adapter, by the name of A: the weighted sum of the products of all clients that held some of it.
    held
        The weight of the clients that held each unit: (rank,) float64.
    weight
        The weight of all clients.
    """

    sums: dict[str, ProductSum] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0


@dataclass(frozen=True)
class ProductMerge(Part):
    """Merges what adapters compute, B A, instead of their factors."""

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error where products cannot be merged, or where something else depends on single factors."""
        del public
        method, server = setup.method, setup.server
        ranks = {adapter.rank for adapter in trained_adapters(setup.axes, setup.user_frozen)}
        plans = [setup.submodel_plan(ratio) for ratio in setup.ratios]
        obstacles = {
            f"server.optimizer={server.optimizer}": server.optimizer != "average",
            "upload.feedback=true": setup.upload.feedback,
            "a part that keeps tensors at its clients": bool(method.overriding("finish")),
            "a masked loss": bool(method.overriding("output_mask")),
            "a plan that cuts more than ranks": any(plan.runs.keys() - ranks for plan in plans),
        }
        for what, present in obstacles.items():
            if present:
                raise ConfigError(f"adapters cannot be merged by product with {what}: leave that out, or {_INSTEAD}")
        for name in sorted(setup.parameters - setup.user_frozen):
            reason = _obstacle(setup, name)
            if reason:
                raise ConfigError(f"the adapter of {name} cannot be merged by product, because {reason}: {_INSTEAD}")

    @torch.no_grad()
    def received(self, round: RoundContext, update: Update, earlier: ProductSums | None) -> ProductSums:
        """Add the products of another client."""
        setup, total = round.setup, earlier or ProductSums()
        weight = sum(setup.weight(who) for who in update.who)
        total.weight += weight
        for adapter in trained_adapters(setup.axes, setup.user_frozen):
            if adapter.a not in update.state:  # the client's plan drops its block
                continue
            a, b = update.state[adapter.a].flatten(1), update.state[adapter.b].flatten(1)
            if adapter.a not in total.sums:
                total.sums[adapter.a] = ProductSum(len(b), a.shape[1])
                total.held[adapter.a] = torch.zeros(len(round.before[adapter.a]), dtype=torch.float64)
            total.sums[adapter.a].add(b.double() * weight, a)
            units = update.plan.index(adapter.rank) if adapter.rank in update.plan.runs else slice(None)
            total.held[adapter.a][units] += weight
        return total

    @torch.no_grad()
    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Replace the factors of every adapter by the best ones for the mean of clients' products."""
        setup, before, total = round.setup, round.before, merged.received
        model, best = dict(merged.model), {}
        for adapter in trained_adapters(setup.axes, setup.user_frozen):
            if total is None or adapter.a not in total.sums:
                continue
            a, b, sums = before[adapter.a], before[adapter.b], total.sums[adapter.a]
            rest = total.weight - total.held[adapter.a]  # the weight of the clients that did not hold a unit
            sums.add((b.flatten(1).double() * rest)[:, rest > 0], a.flatten(1)[rest > 0])
            best[adapter] = sums.best(len(a))
            model[adapter.a], model[adapter.b] = factors_of(best[adapter], a, b, total.weight)
        model |= {name: model[first] for name, first in setup.axes.tied.items()}
        figures = {"lost_norm": _report_lost(best)} if best else {}
        return AfterMerge(model, dict(round.method_state), figures=figures)


def trained_adapters(axes: AxisMap, frozen: frozenset[str]) -> tuple[Adapter, ...]:
    """Return the adapters of a model that are trained: neither factor is among the `frozen` names."""
    return tuple(adapter for adapter in adapters(axes) if not {adapter.a, adapter.b} & frozen)


def factors_of(product: LowRank, a: Tensor, b: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the new factors A and B of an adapter.

    Parameters
    ----------
    product
        `weight` times what they should compute.
    a, b
        The factors before, (rank, …) and (outputs, rank, …); the new ones have their shapes and dtypes.
    weight
        What `product` is divided by.

    Examples
    --------
    >>> from nestling.cut.low_rank import ProductSum
    >>> total = ProductSum(2, 2)
    >>> total.add(torch.tensor([[6.0], [0.0]]), torch.tensor([[1.0, 0.0]]))
    >>> a, b = factors_of(total.best(rank=1), torch.tensor([[0.0, 3.0]]), torch.zeros(2, 1), weight=2.0)
    >>> a.norm().item(), (b @ a).tolist()
    (3.0, [[3.0, 0.0], [0.0, 0.0]])
    """
    used, rank = len(product.values), len(a)
    b_moves = bool(a.any())  # which of the two gets the singular values
    still, moved = (product.right, product.left.T) if b_moves else (product.left.T, product.right)
    new_still = (a.flatten(1) if b_moves else b.flatten(1).T).double()
    scale = new_still.norm().item() / math.sqrt(rank) or 1.0
    new_moved = moved.new_zeros(rank, moved.shape[1])
    new_still[:used] = scale * still
    new_moved[:used] = (product.values / (weight * scale))[:, None] * moved
    new_a, new_b = (new_still, new_moved.T) if b_moves else (new_moved, new_still.T)
    return new_a.reshape(a.shape).to(a.dtype), new_b.reshape(b.shape).to(b.dtype)


def _obstacle(setup: Setup, name: str) -> str:
    """Return why the adapter of a trained tensor cannot be merged by product; empty if it can, or if there is none."""
    if _DORA in name:
        return "DoRA divides by the norm of the whole weight"
    if not other_factor(name):
        return ""
    all_trained = trained_adapters(setup.axes, setup.user_frozen)
    adapter = next((adapter for adapter in all_trained if setup.axes.tied.get(name, name) == adapter.a), None)
    if adapter is None:
        return "its rank is not an axis of both factors"
    if {adapter.a, adapter.b} & setup.owners.keys():
        return "it is not shared by all clients"
    uses = setup.axes.uses(adapter.rank) if adapter.rank else [adapter.a, adapter.b]
    first_names = {setup.axes.tied.get(use, use) for use in uses}
    return "" if first_names == {adapter.a, adapter.b} else "other tensors have the same rank axis"


def _report_lost(best: Mapping[Adapter, LowRank]) -> float:
    """Report the share of the norm of all products that was lost, and return it."""
    norm = math.hypot(*(product.norm for product in best.values()))
    share = math.hypot(*(product.lost for product in best.values())) / norm if norm else 0.0
    losses = {adapter: product.lost / product.norm for adapter, product in best.items() if product.norm}
    truncated = [adapter for adapter, lost in losses.items() if lost > _EXACT]
    if truncated:
        worst = max(truncated, key=losses.__getitem__)
        report(
            "adapter truncated",
            f"the mean of the adapters has a higher rank than they hold: {share:.2%} of its norm was lost (most, "
            f"{losses[worst]:.2%}, of {worst.rank or worst.a})",
            logging.INFO,
            count=len(truncated),
        )
    return share
