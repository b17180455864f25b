"""NeFL: sub-models that are narrower, shallower or both, with step sizes and norms of their own.

Kang et al., NeFL: Nested Federated Learning for Heterogeneous Clients, 2023.

A residual net is read as an ODE solver: a sub-model leaves blocks out and learns, for each block that stays, how large
a step it takes. Steps and norms (with their running statistics) are *inconsistent*: each sub-model has its own,
averaged among the clients that trained it. All other parameters are averaged over everyone who holds them (NeFedAvg).

Departures
----------
- Blocks left out are neither stored, sent nor computed; the authors' code multiplies them by zero.
- What nobody trained in a round keeps its value; the authors' averaging zeroes blocks that only absent sub-models have.
- Heads of attention stay whole and get thinner; the authors' code cuts q, k and v as one block.
- Where norms are shared (``inconsistent`` without them), they are static, as running statistics of different widths
  would contradict each other.

Our readings
------------
- The rows of Tables 10 to 15 are shares of blocks and of widths, and hold for the same model at any width.
- D_O where a whole stage is skipped: the last kept block before the gap makes up for all blocks skipped after it,
  counted across stages. A.3 says that steps follow the number of skipped blocks; its example, Table 12, skips no whole
  stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.methods.context import Setup
from nestling.methods.method import Method
from nestling.methods.nefl.nefl_plans import STEP, initial_steps, nefl_plan, nefl_source
from nestling.methods.part import PlanPart
from nestling.methods.parts.per_submodel import NORMS, PerSubmodel, Untrained
from nestling.methods.parts.static_norms import StaticNorms

STEPS = f"*{STEP}"


@dataclass(frozen=True)
class NeflPlan(PlanPart):
    """The sub-model with a share γ of the parameters: from the paper's tables, or built for any residual net."""

    variant: str
    table: str

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the sub-model of a level."""
        del method_state
        return nefl_plan(setup.axes, setup.parameters, ratio, self.variant, self.table)

    def submodel_source(self, setup: Setup, ratio: float) -> str:
        """Return what the sub-model of a level is made from: a table, the builder, … (see `nefl_source`)."""
        return nefl_source(setup.axes, setup.parameters, ratio, self.variant, self.table)


@dataclass(frozen=True)
class NeflTensors(PerSubmodel):
    """The norms and step sizes of every sub-model; steps start as the variant has them (A.3)."""

    variant: str

    def initial(self, setup: Setup, plan: Plan) -> dict[str, float]:
        """Return the step sizes with which a sub-model starts."""
        return initial_steps(setup.axes, plan, self.variant)


def nefl(
    variant: Literal["W", "D", "DO", "WD"] = "WD",
    learn_steps: bool = True,
    inconsistent: tuple[str, ...] = (NORMS, STEPS),
    table: str = "auto",
) -> Method:
    """Return NeFL.

    Parameters
    ----------
    variant
        What is scaled: width, depth, depth with larger steps before gaps (D_O), or both.
    learn_steps
        Whether step sizes are trained; if not, they stay where they begin (the paper's N/L).
    inconsistent
        What every sub-model has for itself: shell patterns of state names, and ``"norms"``. Layer norms have no
        running statistics and are shared, which the paper found better; ``"*norm*"`` would name them too.
    table
        ``"auto"`` uses the paper's rows for its models, also narrower and wider ones of the same blocks, and a balanced
        sub-model for any other; ``"none"`` never uses them. summary.json says which it was, level by level.

    Examples
    --------
    >>> nefl(variant="W").name
    'nefl'
    """
    return Method(
        "nefl",
        NeflPlan(variant, table),
        NeflTensors(inconsistent, variant) if inconsistent else None,
        None if learn_steps else Untrained((STEPS,)),
        None if NORMS in inconsistent else StaticNorms(),
    )
