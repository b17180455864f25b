"""The sub-models of NeFL: the paper's own for its models at any width, and balanced ones for any other residual net.

Kang et al., NeFL: Nested Federated Learning for Heterogeneous Clients, 2023, section 4.1 and B.1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import Same
from nestling.errors import MethodError, nearest
from nestling.methods.nefl.nefl_build import Sizes, build, runs_of, sizes_of
from nestling.methods.nefl.nefl_tables import TABLES, Row

VARIANTS = ("W", "D", "DO", "WD")
STEP = ".step"  # how the state name of a block's step size ends


def nefl_plan(
    axes: AxisMap, parameters: frozenset[str], gamma: float, variant: str = "WD", table: str = "auto"
) -> Plan:
    """Return the sub-model with about `gamma` of the parameters; remembered from call to call.

    W keeps √γ of every axis, by definition. Without a table, D is as near to `gamma` as whole blocks allow: the last
    blocks of each stage go, no stage as a whole unless the rest is still too large, and of the depths within 1 % of
    `gamma` the one whose stages are shortened most alike. DO keeps the blocks of D, as in the paper's Table 12. WD
    takes a balanced depth near √γ and as many units as come within 1 % of `gamma`; of two sub-models of one depth the
    smaller lies inside the larger, while a larger one with more blocks may be narrower.

    Parameters
    ----------
    axes
        The axes of the whole model.
    parameters
        The names in `axes.dims` that are trained; the others are buffers and not counted.
    gamma
        The share of the parameters, in (0, 1].
    variant
        What is scaled: ``"W"`` width, ``"D"`` or ``"DO"`` depth, ``"WD"`` both.
    table
        The name of a model in `nefl_tables`, to use the paper's rows; ``"auto"`` for those of the model itself, where
        it is one of the paper's, at any width (`Table.fits`), and there is a row for `gamma`; ``"none"`` for no table.

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> net = build("resnet18", widths=(16, 32, 64, 128))
    >>> axes = nestling.trace(net, *example("resnet18"))
    >>> small = nefl_plan(axes, frozenset(dict(net.named_parameters())), 0.6, "D")
    >>> small.key, sorted(set(axes.blocks) - set(small.blocks))
    ('g0.6', ['stages.3.1'])
    """
    _check(gamma, variant, table)
    if gamma == 1:
        return Plan(key="full")
    return _plan(Same(axes), parameters, float(gamma), variant, table)


def nefl_source(
    axes: AxisMap, parameters: frozenset[str], gamma: float, variant: str = "WD", table: str = "auto"
) -> str:
    """Return what `nefl_plan` makes a sub-model from, with the same arguments.

    ``"table NAME"`` is the paper's row for a model of `nefl_tables`; ``"builder"`` is `nefl_build`, for want of a row;
    ``"square root of γ"`` is variant W, which cuts every axis alike; ``"whole model"`` is γ = 1.

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> net = build("resnet18", widths=(16, 32, 64, 128))
    >>> axes = nestling.trace(net, *example("resnet18"))
    >>> parameters = frozenset(dict(net.named_parameters()))
    >>> [nefl_source(axes, parameters, gamma) for gamma in (0.6, 0.7, 1)]
    ['table resnet18', 'builder', 'whole model']
    """
    _check(gamma, variant, table)
    if gamma == 1:
        return "whole model"
    if variant == "W":
        return "square root of γ"
    chosen = _row(sizes_of(Same(axes), parameters), float(gamma), variant, table)
    return "builder" if chosen is None else f"table {chosen[0]}"


def _check(gamma: float, variant: str, table: str) -> None:
    if variant not in VARIANTS:
        raise MethodError(f"nefl has no variant {variant!r}{nearest(str(variant), VARIANTS)}")
    if table not in ("auto", "none", *TABLES):
        raise MethodError(f"nefl has no table {table!r}{nearest(str(table), ('auto', 'none', *TABLES))}")
    if isinstance(gamma, bool) or not (isinstance(gamma, float | int) and 0 < gamma <= 1):
        raise MethodError(f"nefl's share of the parameters must be a number above 0 and at most 1, not {gamma!r}")


def initial_steps(axes: AxisMap, plan: Plan, variant: str) -> dict[str, float]:
    """Return the value at which every step size that `plan` keeps begins, by its state name.

    It is 1; in variant DO the last kept block before a gap starts at 1 + the number of blocks skipped after it (A.3). A
    gap ends at the next kept block, in whichever stage that is. Blocks skipped before the first kept one count nowhere.

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> net = build("resnet18", depths=(3, 1), widths=(4, 8))
    >>> axes = nestling.trace(net, *example("resnet18"))
    >>> initial_steps(axes, nestling.plan(axes, blocks=["stages.0.0", "stages.1.0"]), "DO")
    {'stages.0.0.step': 3.0, 'stages.1.0.step': 1.0}
    """
    if variant not in VARIANTS:
        raise MethodError(f"nefl has no variant {variant!r}{nearest(str(variant), VARIANTS)}")
    kept = set(axes.blocks if plan.blocks is None else plan.blocks)
    steps: dict[str, float] = {}
    units = [unit for run in runs_of(axes) for unit in run]
    stays = [k for k, unit in enumerate(units) if kept.intersection(unit)]
    for k, following in pairwise([*stays, len(units)]):
        value = float(following - k) if variant == "DO" else 1.0
        for block in kept.intersection(units[k]):
            steps |= {name: value for name in axes.blocks[block] if name.endswith(STEP)}
    return {name: steps[name] for name in axes.dims if name in steps}


@lru_cache(maxsize=256)
def _plan(same: Same, parameters: frozenset[str], gamma: float, variant: str, table: str) -> Plan:
    axes, sizes = same.axes, sizes_of(same, parameters)
    chosen = _row(sizes, gamma, variant, table)
    if chosen is None:
        counts, depth = build(sizes, gamma, variant)
        kept = [unit for run, count in zip(sizes.runs, depth, strict=True) for unit in run[:count]]
    else:
        _, row = chosen
        counts = sizes.at(math.sqrt(row.width))
        ones = row.blocks.replace(" ", "") or "1" * sum(sizes.full)
        units = [unit for run in sizes.runs for unit in run]
        kept = [unit for unit, one in zip(units, ones, strict=True) if one == "1"]
    blocks = [block for unit in kept for block in unit]
    narrower = {name: range(count) for name, count in counts.items() if count < axes.axes[name]}
    return Plan(narrower, blocks if len(blocks) < len(axes.blocks) else None, f"g{gamma:g}")


# ---- the paper's


def _row(sizes: Sizes, gamma: float, variant: str, table: str) -> tuple[str, Row] | None:
    """The paper's row and the model that it is for, or None where a sub-model is to be built."""
    kind, gamma = variant.removesuffix("O"), round(gamma, 9)
    if table == "none":
        return None
    if table == "auto":
        # What blocks hold tells a model of the paper, whatever its classes, its image size and its first layer.
        model = sizes.full, sizes.weights, sizes.vectors
        fitting = [(name, one.rows.get(kind, {}).get(gamma)) for name, one in TABLES.items() if one.fits(*model)]
        return next(((name, row) for name, row in fitting if row is not None), None)
    chosen = TABLES[table]
    if chosen.stages != sizes.full:
        raise MethodError(
            f"nefl's table {table!r} is for stages of {chosen.stages} blocks, and this model has {sizes.full}; "
            "use 'none'"
        )
    rows = chosen.rows.get(kind, {})
    if gamma not in rows:
        known = ", ".join(f"{value:g}" for value in sorted(rows)) or "none"
        raise MethodError(
            f"nefl's table {table!r} has no row for {gamma:g} in variant {variant!r} (it has {known}); use 'auto'"
        )
    return table, rows[gamma]
