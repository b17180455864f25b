"""`Tally`: the streaming, exact merge of trained slices into one model.

Clients that hold the same slice are averaged first, as a running mean over contiguous tensors: as fast as copying,
and exact where nothing was trained (a mean of equal numbers is moved by zero). The means of different slices then
meet coordinate by coordinate in double precision, each with the weight of its clients. Memory depends on how many
*different* slices there are, and is bounded: beyond `OPEN` of them, slices go straight into double-precision sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.axes.dims import Dims, Leaf, leaves, replace
from nestling.cut.extract import State, cuts, fits
from nestling.cut.plan import Plan, Runs
from nestling.cut.slices import Cut, cut
from nestling.errors import PlanError, StateError, nearest

OPEN = 8  # different slices averaged on their own at a time; five levels, or NeFL's five submodels, fit


class Tally:
    """Merges sub-models into the whole model, one at a time, in memory that does not grow with their number.

    Every coordinate becomes the weighted mean of the clients that held it; one that nobody held keeps its value.
    Floating-point buffers (running statistics) are averaged like parameters; whole-number buffers (batch counters)
    become the largest value any client returned. An update that does not fit is refused before anything changes.

    Parameters
    ----------
    axes
        The axes of the whole model.
    state
        The state of the whole model that the clients started from; it is read, never written.

    Examples
    --------
    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> plan = nestling.plan(axes, width=0.5)
    >>> small = nestling.submodel(net, axes, plan)
    >>> _ = torch.nn.init.ones_(small[0].weight)
    >>> tally = Tally(axes, net.state_dict())
    >>> tally.add(small.state_dict(), plan)
    >>> merged = tally.value()["0.weight"]
    >>> merged[:4].eq(1).all().item(), torch.equal(merged[4:], net[0].weight[4:])
    (True, True)
    """

    def __init__(self, axes: AxisMap, state: State) -> None:
        self._axes = axes
        self._means: dict[object, _Mean] = {}
        self._spare: dict[object, dict[str, Tensor]] = {}
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self.restart(state)

    def restart(self, state: State) -> None:
        """Begin anew from `state`, in the memory of the last merge: the next round of the same fleet."""
        fits(self._axes, state)
        self._state = {
            name: state[name if name in state else self._axes.tied[name]].detach() for name in self._axes.dims
        }
        self._names = [name for name in self._state if name not in self._axes.tied]
        self._counters: dict[str, Tensor] = {}
        self._spare = {
            tuple((name, tensor.shape) for name, tensor in mean.tensors.items()): mean.tensors
            for mean in self._means.values()
        }
        self._means.clear()
        for total, weights in self._sums.values():
            total.zero_()
            weights.zero_()
        self.clients = 0

    def add(
        self,
        state: State,
        plan: Plan,
        weight: float = 1.0,
        touched: Plan | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        """Add what one client returned.

        Parameters
        ----------
        state
            The state of its sub-model: every tensor of the plan, in the dtype of the whole model.
        plan
            The plan it was given.
        weight
            How much it counts: 1, its number of samples, …
        touched
            What it trained where that is less than the plan: a plan that names some axes again, with fewer
            units. It may name frozen axes, such as the classes that the client holds.
        trusted
            Skip the search for values that are not finite: for workers of your own that have looked already.
        """
        if not (isinstance(weight, float | int) and math.isfinite(weight) and weight > 0):
            raise StateError(f"the weight of a client must be a number above zero, not {weight!r}")
        how = cuts(self._axes, plan)
        self._check(state, how, trusted)
        part = {} if touched is None else self._narrowed(state, plan, touched)
        # all checks are behind us: from here on nothing may fail
        for name in self._names:
            if name in how and not self._state[name].is_floating_point():
                old = self._counters.get(name)
                new = state[name].detach()
                self._counters[name] = new.clone() if old is None else torch.maximum(old, new)
        for name, (tensor, where) in part.items():
            self._add_sum(name, tensor, where, weight)
        self._add_mean({name: state[name].detach() for name in self._floats(plan) if name not in part}, plan, weight)
        self.clients += 1

    def value(self) -> dict[str, Tensor]:
        """Return the merged state of the whole model: new tensors, names tied in the model share one."""
        merged: dict[str, Tensor] = {}
        for name in self._axes.dims:
            if name in self._axes.tied:
                merged[name] = merged[self._axes.tied[name]]
            elif name in self._counters:
                merged[name] = self._counters[name].clone()
            else:
                merged[name] = self._merged(name)
        return merged

    def weights(self, name: str) -> Tensor:
        """Return how much weight every coordinate of a tensor has gathered so far, in its shape (float64)."""
        if name not in self._state:
            raise StateError(f"there is no tensor {name!r}{nearest(name, self._state)}")
        name = self._axes.tied.get(name, name)
        full = cuts(self._axes, Plan())[name]
        weights = self._sums[name][1].clone() if name in self._sums else _blank(full)
        for mean in self._means.values():
            if mean.weight and name in mean.cuts:
                mean.cuts[name].count(weights, mean.weight)
        return weights.view(_collapsed(full)).expand(full.view).reshape(full.shape)

    def _narrowed(self, state: State, plan: Plan, touched: Plan) -> dict[str, tuple[Tensor, Cut]]:
        """The tensors of which the client trained only a part: that part, and its place in the whole model."""
        touched.fit(self._axes, frozen=True)
        for axis, runs in touched.runs.items():
            whole = ((0, self._axes.table[axis].size),)
            if not all(any(a <= x and y <= b for a, b in plan.runs.get(axis, whole)) for x, y in runs):
                raise PlanError(f"the touched units of axis {axis!r} are not all among those that its plan keeps")
        both = {**plan.runs, **touched.runs}
        result = {}
        for name in self._floats(plan):
            dims = self._axes.dims[name]
            if any(leaf.name in touched.runs for dim in dims for leaf in leaves(dim)):
                where = cut(dims, lambda leaf: both.get(leaf.name, ((0, leaf.size),)))
                small = Dims(replace(dim, lambda leaf: Leaf(leaf.name, _count(plan, leaf))) for dim in dims)
                inside = cut(small, lambda leaf: _ranks(plan, both, leaf.name, leaf.size))
                result[name] = inside.take(state[name].detach()), where
        return result

    def _floats(self, plan: Plan) -> list[str]:
        how = cuts(self._axes, plan)
        return [name for name in self._names if name in how and self._state[name].is_floating_point()]

    def _check(self, state: State, how: Mapping[str, Cut], trusted: bool) -> None:
        for name in state:
            if name not in how:
                where = "its plan drops" if name in self._state else "the model does not have"
                raise StateError(f"the update holds {name!r}, which {where}{nearest(name, how)}")
        for name, place in how.items():
            tensor = state.get(name)
            if tensor is None:
                if name in self._axes.tied:
                    continue
                raise StateError(f"the update lacks the tensor {name!r}, which its plan keeps")
            if tuple(tensor.shape) != place.shape:
                raise StateError(
                    f"the tensor {name!r} has shape {tuple(tensor.shape)}, but its plan gives it {place.shape}"
                )
            if tensor.dtype != self._state[name].dtype:
                raise StateError(f"the tensor {name!r} is {tensor.dtype}, but the model's is {self._state[name].dtype}")
            if not trusted and tensor.is_floating_point() and not _finite(tensor):
                raise StateError(f"the tensor {name!r} holds values that are not finite")

    def _add_mean(self, tensors: dict[str, Tensor], plan: Plan, weight: float) -> None:
        how = cuts(self._axes, plan)
        key = (plan.content, tuple(tensors))
        mean = self._means.get(key)
        if mean is None and (len(self._means) < OPEN or all(how[name].whole for name in tensors)):
            shapes = tuple((name, tensor.shape) for name, tensor in tensors.items())
            room = self._spare.pop(shapes) if shapes in self._spare else _like(tensors)
            mean = self._means[key] = _Mean(room, how)
        if mean is not None:
            mean.add(tensors, weight)
        else:
            for name, tensor in tensors.items():
                self._add_sum(name, tensor, how[name], weight)

    def _add_sum(self, name: str, tensor: Tensor, where: Cut, weight: float) -> None:
        if name not in self._sums:
            full = torch.zeros(where.view, dtype=torch.float64, device=self._state[name].device)
            self._sums[name] = (full, _blank(where))
        total, weights = self._sums[name]
        where.add_to(total, tensor.double().mul_(weight))
        where.count(weights, weight)

    def _merged(self, name: str) -> Tensor:
        old = self._state[name]
        means = [mean for mean in self._means.values() if mean.weight and name in mean.tensors]
        sums = self._sums.get(name)
        if sums is None and not means:
            return old.clone()
        if sums is None and len(means) == 1 and means[0].cuts[name].whole:
            return means[0].tensors[name].to(old.dtype, copy=True)
        full = cuts(self._axes, Plan())[name]
        if sums is None:
            total, weights = torch.zeros(full.view, dtype=torch.float64, device=old.device), _blank(full)
        else:
            total, weights = sums[0].clone(), sums[1].clone()
        for mean in means:
            mean.cuts[name].add_to(total, mean.tensors[name].double().mul_(mean.weight))
            mean.cuts[name].count(weights, mean.weight)
        weights = weights.view(_collapsed(full))
        merged = torch.where(weights > 0, total / weights, old.reshape(full.view).double())
        return merged.to(old.dtype).view(old.shape)


class _Mean:
    """The running mean of what clients with one slice returned."""

    def __init__(self, tensors: dict[str, Tensor], where: Mapping[str, Cut]) -> None:
        self.tensors = tensors
        self.cuts = {name: where[name] for name in tensors}
        self.weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        mine = list(self.tensors.values())
        theirs = [tensors[name].to(mean.dtype) for name, mean in self.tensors.items()]
        self.weight += weight
        if self.weight == weight:
            torch._foreach_copy_(mine, theirs)
        else:  # mean += (new − mean) · share: moves by exactly zero where new equals mean
            torch._foreach_lerp_(mine, theirs, weight / self.weight)


def _like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Room for running means; those of half-precision tensors are kept in single precision."""
    return {name: torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for name, x in tensors.items()}


def _finite(tensor: Tensor) -> bool:
    # a sum is quicker than asking every value; it can only overflow to a false alarm, which the slow way settles
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _collapsed(where: Cut) -> tuple[int, ...]:
    return tuple(1 if fixed else n for n, fixed in zip(where.view, where.fixed, strict=True))


def _blank(where: Cut) -> Tensor:
    return torch.zeros(_collapsed(where), dtype=torch.float64)


def _count(plan: Plan, leaf: Leaf) -> int:
    return sum(stop - start for start, stop in plan.runs.get(leaf.name, ((0, leaf.size),)))


def _ranks(plan: Plan, both: Mapping[str, Runs], axis: str, count: int) -> Runs:
    """The runs of `both` along an axis, counted in the units that `plan` keeps of it."""
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
