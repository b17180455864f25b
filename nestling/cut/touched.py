"""What a client trained of its slice, if that is less than the slice: cuts of the slice, and of the whole tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nestling.axes import AxisMap
from nestling.axes.dims import leaves, smaller
from nestling.cut.extract import cuts
from nestling.cut.plan import Plan, Runs
from nestling.cut.slices import Cut, cut
from nestling.errors import PlanError


def touched_cuts(axes: AxisMap, plan: Plan, touched: Plan, names: Iterable[str]) -> dict[str, tuple[Cut, Cut]]:
    """Return, for tensors of which only a part was trained, its cut from the slice and from the whole tensor.

    Parameters
    ----------
    axes
        The axes of the whole model.
    plan
        The plan of the slice.
    touched
        A plan that names some axes again, with fewer units; it may name frozen axes.
    names
        The tensors to look at, tied ones by their first name.

    Examples
    --------
    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> plan, touched = nestling.plan(axes, width=0.5), Plan({"model.0": [1, 3]})
    >>> inside, where = touched_cuts(axes, plan, touched, ["2.weight"])["2.weight"]
    >>> inside.runs[1], inside.shape, where.view
    (((1, 2), (3, 4)), (2, 2), (2, 8))
    """
    touched.fit(axes, frozen=True)
    if touched.blocks is not None:
        raise PlanError("touched may name axes only: blocks that were not trained are dropped by the plan")
    for axis, runs in touched.runs.items():
        kept = plan.runs.get(axis, ((0, axes.table[axis].size),))
        if not all(any(a <= start and stop <= b for a, b in kept) for start, stop in runs):
            raise PlanError(f"the touched units of axis {axis!r} are not all among those that its plan keeps")
    both = {**plan.runs, **touched.runs}
    present = {axes.tied.get(name, name) for name in cuts(axes, plan)}
    result = {}
    for name in names:
        dims = axes.dims[name]
        if name in present and any(leaf.name in touched.runs for dim in dims for leaf in leaves(dim)):
            inside = cut(smaller(dims, plan.sizes), lambda leaf: _ranks(plan, both, leaf.name, leaf.size))
            where = cut(dims, lambda leaf: both.get(leaf.name, ((0, leaf.size),)))
            result[name] = inside, where
    return result


def _ranks(plan: Plan, both: Mapping[str, Runs], axis: str, count: int) -> Runs:
    """Return the runs of `both` along an axis, relative to the units that `plan` keeps of it."""
    if axis not in plan.runs:
        return both.get(axis, ((0, count),))
    ranks = []
    for start, stop in both[axis]:
        before = 0
        for a, b in plan.runs[axis]:
            if a <= start and stop <= b:
                ranks.append((before + start - a, before + stop - a))
            before += b - a
    return tuple(ranks)
