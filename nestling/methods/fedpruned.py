"""FedPruned: everybody trains the same sub-network, drawn at random before the first round.

The baseline of FedMorph (anonymous submission, §5.1): FedAvg "with a sub-network randomly pruned from the global
network at initialization".

Departures
----------
- Every axis keeps exactly the share `ratio` of its units, so the sub-network has about ratio² of the parameters. The
  sizes in the paper's Table 1 (36.0 % and 35.3 % with 0.6) suggest that each unit is drawn independently.
- The global model that is tested and saved is the sub-network: nobody ever trains the rest.
- Norms are static, as in FedAvg here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.cut import Plan, plan
from nestling.cut.extract import State
from nestling.errors import MethodError
from nestling.methods.context import Setup
from nestling.methods.method import Method
from nestling.methods.part import PlanPart
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.static_norms import StaticNorms


@dataclass(frozen=True)
class PrunedPlan(PlanPart):
    """The same random set of units of every axis for all clients, in all rounds."""

    ratio: float

    @property
    def by_level(self) -> bool:
        """Return False: all clients get the same slice."""
        return False

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Return the seed that the sub-network is drawn from."""
        del setup
        return {"seed": torch.tensor(seed)}

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the sub-network."""
        del ratio
        return plan(setup.axes, self.ratio, "random", seed=int(method_state["seed"]))


def fedpruned(ratio: float = 0.6, masked: bool = False) -> Method:
    """Return FedPruned.

    Parameters
    ----------
    ratio
        The share of every axis that is kept; in the paper 0.25, 0.35 and 0.6.
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> fedpruned(ratio=0.25).weighting
    'samples'
    """
    if not 0 < ratio <= 1:
        raise MethodError(f"fedpruned's ratio must be above 0 and at most 1, not {ratio!r}")
    mask = MaskedLoss() if masked else None
    return Method("fedpruned", PrunedPlan(ratio), StaticNorms(), mask, weighting="samples")
