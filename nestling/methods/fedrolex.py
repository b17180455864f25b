"""FedRolex: the window of channels that devices train moves on every round, so that all channels are trained equally.

Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS 2022.

A round (Algorithm 1): every client trains a window of each axis (Eq. 4), and the server averages every weight over the
clients that held it (§3.2). The rest is HeteroFL's.

Departures
----------
- One window per axis: layers that are added to each other (residual streams) always roll together, and in attention the
  window rolls inside every head. The authors' code mixes heads.
- Every coordinate is the mean of its clients; the authors' code weights norms and linear layers by client order.
- With step 1, all units are trained equally often over a period. With other steps, only if the step and the axis's size
  have no common factor, or one that divides the window.
- A window has ⌈β · K⌉ units, as in HeteroFL's code; Eqs. 4 to 6 take the floor. For the papers' levels both are equal.
- Clients can be weighted by samples or by width. Footnote 3 compares three weightings with none, in an appendix that we
  do not have; the third is not here.
- Heads of its transformer have 16 dimensions; the text says 12 (see nestling.nets.transformer).
- Tests use norm statistics of the clients (see nestling.methods.parts.static_norms), not those of test batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestling.cut import Plan, plan
from nestling.errors import MethodError
from nestling.methods.context import Participant, RoundContext
from nestling.methods.heterofl import heterofl
from nestling.methods.method import Method, Weighting
from nestling.methods.part import PlanPart


@dataclass(frozen=True)
class RollingPlan(PlanPart):
    """A window of every axis that starts `step` units further each round, and wraps around (Eq. 4)."""

    step: int = 1

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the window of a round."""
        return plan(round.setup.axes, who.level.ratio, "rolling", round=round.number - 1, step=self.step)


def fedrolex(step: int = 1, weighting: Weighting = "none", scaler: bool = True, masked: bool = True) -> Method:
    """Return FedRolex.

    Parameters
    ----------
    step
        The units by which the window moves in a round; with 0, this is HeteroFL.
    weighting
        How much a client counts in the merge: all the same, by its samples, or by its width.
    scaler
        Whether hidden layers divide their outputs by the ratio in training (HeteroFL, §3.3).
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> fedrolex(step=2).plan
    RollingPlan(step=2)
    """
    if step < 0:
        raise MethodError(f"fedrolex's window moves by 0 or more units a round, not {step}")
    return replace(heterofl(scaler, masked), name="fedrolex", plan=RollingPlan(step), weighting=weighting)
