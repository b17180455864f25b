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
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.methods.method import Method, Turn, nothing
from nestling.methods.nefl.nefl_plans import initial_steps, nefl_plan

NORMS = "norms"  # in place of a pattern: every norm that has running statistics
STEPS = "*.step"


def submodel(turn: Turn, variant: str, table: str) -> Plan:
    """The sub-model of a level: γ, the share of the parameters."""
    return nefl_plan(turn.axes, turn.parameters, turn.ratio, variant, table)


def matching(axes: AxisMap, patterns: tuple[str, ...]) -> frozenset[str]:
    """The state names that fit one of some shell patterns; ``"norms"`` stands for norms with running statistics."""
    norms = {name.rpartition(".")[0] for name in axes.dims if name.endswith(".running_mean")}
    return frozenset(
        name
        for name in axes.dims
        if any(
            name.rpartition(".")[0] in norms if pattern == NORMS else fnmatchcase(name, pattern) for pattern in patterns
        )
    )


def first_steps(axes: AxisMap, plan: Plan, variant: str) -> Mapping[str, float]:
    """The step sizes with which a sub-model begins."""
    return initial_steps(axes, plan, variant)


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
        ``"auto"`` uses the paper's table for its models, and a balanced sub-model for any other; ``"none"`` never.

    Examples
    --------
    >>> nefl(variant="W").name
    'nefl'
    """
    chosen = partial(submodel, variant=variant, table=table)
    return Method(
        "nefl",
        plan=chosen,
        deploy=chosen,
        inconsistent=partial(matching, patterns=inconsistent) if inconsistent else nothing,
        begin=partial(first_steps, variant=variant),
        frozen=nothing if learn_steps else partial(matching, patterns=(STEPS,)),
        static=NORMS not in inconsistent,
    )
