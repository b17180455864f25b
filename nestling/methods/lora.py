"""LoRA: devices train low-rank adapters of different ranks; all other weights stay frozen.

Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models (HetLoRA), EMNLP 2024.
Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources (FlexLoRA),
NeurIPS 2024. Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations,
NeurIPS 2024.

A level is a share of the rank of every adapter: of 16 units, a client of level c trains 4. These are the first ones
(HetLoRA's truncation), a window that rolls as FedRolex's does, or a random set. The model's other axes stay whole.

Adapters are merged in one of two ways, weighted by samples.

- ``product``: what the units of adapters *compute*, b a, is averaged over the clients that held a unit, and the new
  factors are the best approximation of the sum (`nestling.methods.parts.product_merge`, after FlexLoRA and FLoRA).
- ``factors``: A and B are averaged over the clients that held a unit, as in all other methods. The product of these
  means is not the mean of the products.

Scaling
-------
An adapter of rank r computes α/r · B A x, or α/√r · B A x if its rank is stabilised (rsLoRA, Kalajdzievski, 2023).
Here r is the rank of the *whole* adapter on every device. A sub-model of rank k is then a part of the whole sum over
units, a unit means the same everywhere, and the merged model computes what clients trained. If a client of rank k
scaled its units by α/k, the merged model would compute only k/r of what this client had trained. Sub-models of
peft models get the α that gives this scaling for their own rank (`nestling.axes.adapters`).

Departures
----------
- HetLoRA prunes ranks while it trains, fills what a client does not hold with zeros and weights clients by the norms
  of their updates: none of this is here.
- FlexLoRA and FLoRA compute factors for each client: a decomposition per rank, or the stack of all clients. Here
  clients get units of the whole adapter. With ``product`` and ``prefix`` these are, as in FlexLoRA, those of the first
  k singular values.
- FLoRA merges adapters into the frozen weights after each round, which then have to travel; here these stay.
- See also `nestling.methods.parts.product_merge`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from nestling.axes import AxisMap
from nestling.cut import Plan, plan
from nestling.cut.extract import Same, State
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.methods.context import Participant, RoundContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import PlanPart, prefix_plan
from nestling.methods.parts.product_merge import ProductMerge, trained_adapters
from nestling.methods.parts.static_norms import StaticNorms

Pick = Literal["prefix", "rolling", "random"]


@dataclass(frozen=True)
class RankPlan(PlanPart):
    """A share of the rank of every adapter, as large as the level carries; all other axes are kept whole."""

    pick: Pick = "prefix"
    step: int = 1

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the model has no adapters that are trained."""
        del public
        if not trained_adapters(setup.axes, setup.user_frozen):
            raise MethodError(
                f"{setup.method.name} cuts the rank of low-rank adapters, and the model has none that are trained: add "
                "them with peft's get_peft_model(model, LoraConfig(…)), or as parameters named lora_A and lora_B"
            )

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the units of every rank that a client trains in a round."""
        setup, ratio = round.setup, who.level.ratio
        if self.pick == "prefix":
            return self.submodel_plan(setup, round.method_state, ratio)
        axes = rank_axes(Same(setup.axes), setup.user_frozen)
        return plan(axes, ratio, self.pick, round=round.number - 1, step=self.step, seed=who.seed)

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the first units of every rank."""
        del method_state
        return prefix_plan(Same(rank_axes(Same(setup.axes), setup.user_frozen)), ratio)


@lru_cache(maxsize=16)
def rank_axes(axes: Same, frozen: frozenset[str]) -> AxisMap:
    """Return an axis map in which only the ranks of trained adapters can be cut; `frozen` are names of tensors."""
    ranks = {adapter.rank for adapter in trained_adapters(axes.axes, frozen)}
    table = {
        name: axis if name in ranks else replace(axis, frozen=axis.frozen or "not the rank of a trained adapter")
        for name, axis in axes.axes.table.items()
    }
    return replace(axes.axes, table=table)


def lora(pick: Pick = "prefix", step: int = 1, merge: Literal["product", "factors"] = "product") -> Method:
    """Return LoRA with a rank per device.

    Parameters
    ----------
    pick
        Which units of a rank a client trains: the first ones, a window that moves on every round, or a random set.
    step
        How many units the window moves in a round.
    merge
        ``"product"``: the mean of what units compute; ``"factors"``: the mean of their factors.

    Examples
    --------
    >>> lora(pick="rolling", merge="factors").chain
    (RankPlan(pick='rolling', step=1), StaticNorms())
    """
    if step < 0:
        raise MethodError(f"lora's window moves by 0 or more units a round, not {step}")
    by_product = ProductMerge() if merge == "product" else None
    return Method("lora", RankPlan(pick, step), StaticNorms(), by_product, weighting="samples")
