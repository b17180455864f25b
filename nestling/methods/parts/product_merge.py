"""Merging low-rank adapters by their products: what clients' adapters compute, B A, is averaged, not A and B.

The product of an adapter is the sum of what its units compute, b a. For every unit, the server takes the mean of the
clients that held it; a unit that nobody held keeps its value. The sum of these means is exact: all factors, stacked
side by side (FLoRA, Wang et al., 2024). The new factors are its best approximation by the rank of the whole adapter
(singular values, as in FlexLoRA, Bai et al., 2024), exact if its rank fits. The share of the norm that was lost is
reported, and recorded as ``lost_norm`` in metrics.jsonl. Units are then ordered by singular value: the first k of them
are the best approximation of rank k.

If all clients hold the whole rank, this is the mean of their products. A round without training changes no product.

Departures
----------
- In FlexLoRA's mean, a unit that a client does not hold counts as zero. Those of large clients then fade from round to
  round (Wu et al., Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity, 2026; their
  raFLoRA weights units by the clients that have them, too).
- FlexLoRA's factors are U Σ and V. Here A = c V, where c is the mean norm of the units of A before, and B = U Σ / c,
  so that the steps of clients keep their size. For embeddings, whose A begins at zero in peft, B and A change places.
- Units that the sum does not need (a sum of rank 6 in adapters of rank 16) begin again as LoRA begins, with one
  factor at zero and the other one as it was. With two zero factors they would never learn again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.axes.adapters import Adapter, adapters, other_factor
from nestling.cut.low_rank import LowRank, low_rank
from nestling.data.federated import ClientData
from nestling.errors import ConfigError
from nestling.events import report
from nestling.methods.context import AfterMerge, Merged, RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.part import Part

_DORA = "lora_magnitude_vector"  # peft's name of DoRA's magnitudes
_EXACT = 1e-6  # a smaller share of the norm is a rounding error in single precision
_INSTEAD = "set options.merge=factors"


@dataclass(frozen=True, eq=False)
class ClientFactors:
    """The factors of one adapter that a client trained: which units of the rank, A (k, …) and B (outputs, k, …)."""

    units: Tensor
    a: Tensor
    b: Tensor
    weight: float


@dataclass(frozen=True)
class ProductMerge(Part):
    """Merges what adapters compute, B A, instead of their factors."""

    @property
    def instead(self) -> str:
        """The other way of merging adapters, which needs no update by itself."""
        return _INSTEAD

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

    def received(
        self, round: RoundContext, update: Update, earlier: dict[Adapter, list[ClientFactors]] | None
    ) -> dict[Adapter, list[ClientFactors]]:
        """Keep the factors of another client, which are small beside a model."""
        setup, kept = round.setup, {} if earlier is None else earlier
        weight = sum(setup.weight(who) for who in update.who)
        for adapter in trained_adapters(setup.axes, setup.user_frozen):
            if adapter.a in update.state:  # else the client's plan drops its block
                a, b = update.state[adapter.a], update.state[adapter.b]
                units = update.plan.index(adapter.rank) if adapter.rank in update.plan.runs else torch.arange(len(a))
                kept.setdefault(adapter, []).append(ClientFactors(units, a, b, weight))
        return kept

    @torch.no_grad()
    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Replace the factors of every adapter by the best ones for the merged product."""
        model, best = dict(merged.model), {}
        for adapter, clients in (merged.received or {}).items():
            a, b = round.before[adapter.a], round.before[adapter.b]
            best[adapter] = merged_product(a, b, clients)
            model[adapter.a], model[adapter.b] = factors_of(best[adapter], a, b)
        model |= {name: model[first] for name, first in round.setup.axes.tied.items()}
        figures = {"lost_norm": _report_lost(best)} if best else {}
        return AfterMerge(model, dict(round.method_state), figures=figures)


def trained_adapters(axes: AxisMap, frozen: frozenset[str]) -> tuple[Adapter, ...]:
    """Return the adapters of a model that are trained: neither factor is among the `frozen` names."""
    return tuple(adapter for adapter in adapters(axes) if not {adapter.a, adapter.b} & frozen)


def merged_product(a: Tensor, b: Tensor, clients: Sequence[ClientFactors]) -> LowRank:
    """Return the best approximation, by the rank of an adapter, of the sum of its units' means over clients.

    Parameters
    ----------
    a, b
        The factors before the round, (rank, …) and (outputs, rank, …): units that nobody held keep them.
    clients
        What clients made of them.
    """
    held = torch.zeros(len(a), dtype=torch.float64)
    for client in clients:
        held[client.units] += client.weight
    parts = [(client.b, client.a, client.weight / held[client.units]) for client in clients]
    rest = (held == 0).nonzero()[:, 0]
    parts.append((b[:, rest], a[rest], torch.ones(len(rest), dtype=torch.float64)))
    left = torch.cat([part.flatten(1).double() * share for part, _, share in parts], 1)
    return low_rank(left, torch.cat([part.flatten(1) for _, part, _ in parts]), len(a))


def factors_of(product: LowRank, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new factors A and B of an adapter, from those before: of their shapes, dtypes and scale.

    >>> product = low_rank(torch.tensor([[3.0], [0.0]]), torch.tensor([[1.0, 0.0]]), rank=1)
    >>> a, b = factors_of(product, torch.tensor([[0.0, 3.0]]), torch.zeros(2, 1))
    >>> a.norm().item(), (b @ a).tolist()
    (3.0, [[3.0, 0.0], [0.0, 0.0]])
    """
    used, rank = len(product.values), len(a)
    b_moves = bool(a.any())  # which of the two gets the singular values
    still, moved = (product.right, product.left.T) if b_moves else (product.left.T, product.right)
    new_still = (a.flatten(1) if b_moves else b.flatten(1).T).to(torch.float64, copy=True)
    scale = new_still.norm().item() / math.sqrt(rank) or 1.0
    new_moved = moved.new_zeros(rank, moved.shape[1])
    new_still[:used] = scale * still
    new_moved[:used] = (product.values / scale)[:, None] * moved
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
            f"the merged adapters have a higher rank than they can hold: {share:.2%} of its norm was lost (most, "
            f"{losses[worst]:.2%}, of {worst.rank or worst.a})",
            logging.INFO,
            count=len(truncated),
        )
    return share
