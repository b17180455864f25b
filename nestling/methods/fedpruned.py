"""FedPruned: everybody trains the same sub-network, drawn at random before the first round.

The baseline of FedMorph (anonymous submission, §5.1): FedAvg "with a sub-network randomly pruned from the global
network at initialization".

Departures
----------
- Every axis keeps exactly the share `ratio` of its units, so the sub-network has about its square of the parameters.
  The sizes in the paper's Table 1 (36.0 % and 35.3 % with 0.6) suggest that each unit is drawn for itself.
- The global model that is tested and saved is the sub-network: nobody ever trains the rest.
- Norms are static, as in FedAvg here.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from nestling.cut import Plan, plan
from nestling.errors import MethodError
from nestling.methods.method import Method, Turn


def draw(turn: Turn) -> dict[str, Tensor]:
    """What the server remembers: the seed that the sub-network is drawn from."""
    return {"seed": torch.tensor(turn.seed)}


def the_one(turn: Turn, ratio: float) -> Plan:
    """The same random set of every axis in all turns."""
    return plan(turn.axes, ratio, "random", seed=int(turn.notes["seed"]))


def fedpruned(ratio: float = 0.6, masked: bool = False) -> Method:
    """Return FedPruned: of every axis the share `ratio` is kept (in the paper 0.25, 0.35 and 0.6).

    >>> fedpruned(ratio=0.25).weighting
    'samples'
    """
    if not 0 < ratio <= 1:
        raise MethodError(f"fedpruned's ratio must be above 0 and at most 1, not {ratio!r}")
    same = partial(the_one, ratio=ratio)
    return Method("fedpruned", plan=same, deploy=same, sized=False, masked=masked, weighting="samples", notes=draw)
