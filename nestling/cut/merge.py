"""`Tally`: the streaming, exact merge of trained slices into one model.

Clients that hold the same slice are averaged first, as a running mean over contiguous tensors: as fast as copying,
and exact for values that were not trained. The means of different slices are then combined coordinate by coordinate in
double precision, each with the weight of its clients. Memory depends on the number of *different* slices, and is
bounded: when `ROOM` times the model is in use, slices are added directly to double-precision sums. That is slower:
means are merged tensor by tensor, which uses the cache better.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut.accept import accept, averaged
from nestling.cut.accept_partial import Mergeable, accept_partial
from nestling.cut.extract import State, check_state, cuts
from nestling.cut.means import Mean, SubmodelMeans, room_for
from nestling.cut.partial_merge import PartialMean, PartialMerge
from nestling.cut.plan import Plan
from nestling.cut.slices import Cut
from nestling.cut.sums import Sums
from nestling.cut.touched import touched_cuts
from nestling.errors import StateError, nearest
from nestling.torch_private import foreach_maximum_

_T = TypeVar("_T")
ROOM = 5.0  # memory for means, in sizes of the whole model; five levels take 1.33 of them, NeFL's five sub-models 3
_SHARE = 3  # a new slice may take a third of the memory that is left: many small ones gain more than one large


class Tally:
    """Merges sub-models into the whole model, one at a time, in memory that does not grow with their number.

    Every coordinate becomes the weighted mean of the clients that held it; one that no client held keeps its value.
    Floating-point buffers (running statistics) are averaged like parameters; integer buffers (batch counters) become
    the largest value that any client returned. An update that does not fit is refused before anything changes.

    Parameters
    ----------
    axes
        The axes of the whole model.
    state
        The state of the whole model that the clients started from; it is not changed.
    fixed
        Names that are never merged and not part of updates: frozen parameters.
    own
        Names of tensors that every sub-model has for itself: see `submodels`.

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

    def __init__(
        self,
        axes: AxisMap,
        state: State,
        fixed: frozenset[str] = frozenset(),
        own: frozenset[str] = frozenset(),
    ) -> None:
        self._axes = axes
        self._fixed = fixed
        self._whole = cuts(axes, Plan())
        self._means: dict[tuple[Plan, tuple[str, ...]], Mean] = {}
        self._kind: object = None
        self._sums: Sums
        self._submodels = SubmodelMeans(own)
        self._spare: dict[object, list[Mean]] = {}
        self.restart(state)

    def restart(self, state: State) -> None:
        """Start a new merge from `state`, in the memory of the last one."""
        check_state(self._axes, state)
        tied = self._axes.tied
        self._state = {name: state[name if name in state else tied[name]].detach() for name in self._axes.dims}
        merged = {name: old for name, old in self._state.items() if name not in tied and name not in self._fixed}
        floats = [name for name, old in merged.items() if averaged(old)]
        self._groups = _alike(self._axes, floats)
        self._counters = {name: None for name, old in merged.items() if not averaged(old)}
        self._counted: dict[str, Tensor] = {}
        self._room, self._used = ROOM * sum(self._state[name].nbytes for name in floats), 0
        self._spare = {}
        kept = {name: self._state[name] for name in floats}
        kind = [(name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in kept.items()]
        if kind == self._kind:  # reuse the memory of the last merge
            self._sums.restart(kept)
            for mean in self._means.values():
                self._spare.setdefault(mean.shapes, []).append(mean)
        else:
            self._sums = Sums(kept, self._whole)
        self._means.clear()
        self._submodels.restart()
        self._kind = kind
        self.clients = 0

    @torch.no_grad()
    def add(
        self,
        state: State,
        plan: Plan,
        weight: float = 1.0,
        touched: Plan | None = None,
        *,
        clients: int = 1,
        trusted: bool = False,
    ) -> None:
        """Add the update of one client, or the mean of several with the same plan.

        Parameters
        ----------
        state
            The state of its sub-model: every tensor of the plan, in the dtype of the whole model.
        plan
            The plan of its sub-model.
        weight
            Its weight: 1, its number of samples, …; for several clients, the sum.
        touched
            What it trained, if that is less than the plan: a plan that names some axes again, with fewer units. It
            may name frozen axes, such as the classes that the client holds.
        clients
            The number of clients.
        trusted
            Skip the search for values that are not finite, for your own workers, which have already done it.
        """
        if isinstance(weight, bool) or not (isinstance(weight, float | int) and 1e-100 <= weight <= 1e100):
            shown = repr(weight)[:40]
            raise StateError(f"the weight of a client must be a number above zero (1e-100 to 1e100), not {shown}")
        weight = float(weight)
        slices = self._slices(plan)
        here = accept(self._axes, self._state, state, slices, trusted)
        part = {} if touched is None else self._touched(plan, touched)
        if not here:
            state = {name: tensor.to(self._state[name].device) for name, tensor in state.items()}
        self._submodels.check(plan, state)
        own = state
        state, slices = self._by_first_name(state), self._by_first_name(slices)
        # all checks are done: from here on nothing may fail
        self._submodels.add(own, plan, weight)
        seen = [name for name in self._counters if name in slices]
        for name in seen:
            if name not in self._counted:
                self._counted[name] = state[name].clone()
        if seen:
            foreach_maximum_([self._counted[name] for name in seen], [state[name] for name in seen])
        rest = [names for names in self._groups if names[0] in slices and names not in part]
        if part:
            inside = {name: cut for names, (cut, _) in part.items() for name in names}
            where = {name: cut for names, (_, cut) in part.items() for name in names}
            self._sums.add({name: cut.take(state[name]) for name, cut in inside.items()}, where, weight)
        self._add_mean(rest, state, slices, plan, weight)
        self.clients += clients

    @torch.no_grad()
    def merge(self, other: Tally | PartialMerge, *, trusted: bool = False) -> None:
        """Add all updates that another tally has merged: as if they had been added here, up to last bits.

        The laws of `add` hold: where no client changed anything, the result is the model bit for bit, and a merge that
        does not fit is refused before anything changes. The result depends on the order of merges in its last bits.

        Parameters
        ----------
        other
            A tally of the same model, before the same round; or its `partial`, perhaps from another machine
            (`PartialMerge.unpack`).
        trusted
            Skip the search for values that are not finite, for your own workers.

        Examples
        --------
        >>> import nestling
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> axes = nestling.trace(net, torch.zeros(1, 4))
        >>> edges = [Tally(axes, net.state_dict()) for _ in range(2)]
        >>> for edge in edges:
        ...     edge.add(net.state_dict(), Plan())
        >>> edges[0].merge(edges[1])
        >>> edges[0].clients, torch.equal(edges[0].value()["0.weight"], net[0].weight)
        (2, True)
        """
        part = other.partial() if isinstance(other, Tally) else other
        slices = [self._by_first_name(self._slices(mean.plan)) for mean in part.means]
        own = [self._slices(mean.plan) for mean in part.submodels]
        model = Mergeable(self._state, self._whole, self._groups, self._counters, self._submodels)
        accept_partial(model, part, slices, own, trusted=trusted or isinstance(other, Tally))
        if not trusted and part.base != self._digest(part):
            raise StateError("the partial merge sums changes of another model: merge what began with the same weights")
        # all checks are done: from here on nothing may fail
        for name, value in part.counters.items():
            highest = value.to(self._state[name].device, copy=True)
            self._counted[name] = torch.maximum(self._counted[name], highest) if name in self._counted else highest
        for mean, cut_by in zip(part.means, slices, strict=True):
            groups = [names for names in self._groups if names[0] in mean.tensors]
            state = {name: tensor.to(self._state[name].device) for name, tensor in mean.tensors.items()}
            self._add_mean(groups, state, cut_by, mean.plan, mean.weight)
        for one in part.sums:
            self._sums.merge(one)
        for mean in part.submodels:
            self._submodels.merge(mean, self._state)
        self.clients += part.clients

    def partial(self) -> PartialMerge:
        """Return all that was merged so far, for `merge` of another tally: views, valid until this tally changes."""
        means = (PartialMean(plan, mean.weight, dict(mean.tensors)) for (plan, _), mean in self._means.items())
        sums = (self._sums.partial(names) for names in self._groups if names[0] in self._sums)
        own = self._submodels.partial()
        part = PartialMerge(self.clients, tuple(means), tuple(sums), own, dict(self._counted))
        return replace(part, base=self._digest(part))

    def pack(self) -> bytes:
        """Return all that was merged so far as safetensors bytes, which `PartialMerge.unpack` reads."""
        return self.partial().pack()

    @torch.no_grad()
    def value(self) -> dict[str, Tensor]:
        """Return the merged state of the whole model: new tensors; names tied in the model share one."""
        merged: dict[str, Tensor] = {name: best.clone() for name, best in self._counted.items()}
        for names in self._groups:
            merged.update(zip(names, self._merged(names), strict=True))
        result = {}
        for name in self._axes.dims:
            first = self._axes.tied.get(name, name)
            result[name] = merged[first] if first in merged else self._state[first].clone()
        return result

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the means of tensors that every sub-model has for itself, over the clients that trained it.

        They are merged like all others, too. The result maps the keys of plans to tensors by name.
        """
        return self._submodels.value()

    def weights(self, name: str) -> Tensor:
        """Return the total weight of every coordinate of a tensor so far, in its shape (float64)."""
        if name not in self._state:
            raise StateError(f"there is no tensor {name!r}{nearest(name, self._state)}")
        name = self._axes.tied.get(name, name)
        full = self._whole[name]
        gathered = next((self._gathered(names) for names in self._groups if name in names), None)
        if gathered is None:
            return torch.zeros(full.shape, dtype=torch.float64)
        return gathered.expand(full.view).reshape(full.shape)

    def _slices(self, plan: Plan) -> Mapping[str, Cut]:
        """Return how a plan cuts every tensor of an update."""
        slices = cuts(self._axes, plan)
        return {name: cut for name, cut in slices.items() if name not in self._fixed} if self._fixed else slices

    def _digest(self, part: PartialMerge) -> str:
        """Return a digest of the tensors whose changes a partial merge sums, as they were before; empty without."""
        digest = hashlib.sha256()
        names = sorted(name for one in part.sums for name in one.totals if self._state[name].dtype == torch.float64)
        for name in names:
            digest.update(name.encode())
            digest.update(self._state[name].cpu().contiguous().reshape(-1).numpy().tobytes())
        return digest.hexdigest() if names else ""

    def _by_first_name(self, items: Mapping[str, _T]) -> Mapping[str, _T]:
        """Return `items` with tied tensors under their first name."""
        tied = self._axes.tied
        return {tied.get(name, name): item for name, item in items.items()} if tied else items

    def _touched(self, plan: Plan, touched: Plan) -> dict[tuple[str, ...], tuple[Cut, Cut]]:
        """Return, for tensors of which only a part was trained, its cut from the slice and from the whole tensor."""
        parts = touched_cuts(self._axes, plan, touched, [names[0] for names in self._groups])
        return {names: parts[names[0]] for names in self._groups if names[0] in parts}

    def _add_mean(
        self, groups: list[tuple[str, ...]], state: State, slices: Mapping[str, Cut], plan: Plan, weight: float
    ) -> None:
        names = [name for group in groups for name in group]
        if not names:
            return
        key = (plan, tuple(names))
        mean = self._means.get(key)
        if mean is None:
            shapes = key[1], tuple([slices[name].shape for name in names])
            spare = self._spare.get(shapes)
            size = spare[-1].bytes if spare else sum(state[name].numel() * self._state[name].itemsize for name in names)
            if _SHARE * size <= self._room - self._used:
                self._used += size
                mean = spare.pop() if spare else self._new_mean(names, state, shapes)
                self._means[key] = mean.restart(slices)
        if mean is not None:
            mean.add([state[name] for name in names], weight)
        else:
            self._sums.add({name: state[name] for name in names}, slices, weight)

    def _new_mean(self, names: list[str], state: State, shapes: object) -> Mean:
        like = {name: state[name].to(self._state[name].dtype) for name in names}  # a mean of half precision is wider
        return Mean(room_for(names, like), shapes, like)

    def _gathered(self, names: tuple[str, ...]) -> Tensor:
        """Return the total weight per coordinate of tensors that are cut alike; fixed factors have size one."""
        full = self._whole[names[0]]
        device = self._state[names[0]].device
        gathered = self._sums.weight(names[0]).clone() if names[0] in self._sums else full.blank(device)
        for mean in self._means.values():
            if names[0] in mean.tensors:
                mean.cuts[names[0]].count(gathered, mean.weight)
        return gathered

    def _merged(self, names: tuple[str, ...]) -> Iterable[Tensor]:
        means = [mean for mean in self._means.values() if names[0] in mean.tensors]
        summed = names[0] in self._sums
        full = self._whole[names[0]]
        if not summed and not means:
            return [self._state[name].clone() for name in names]
        chain = sorted(means, key=lambda mean: -math.prod(mean.cuts[names[0]].kept))
        if not summed and _nested([mean.cuts[names[0]] for mean in chain]):
            return [self._nested(name, chain) for name in names]
        gathered = self._gathered(names)
        held = gathered > 0
        inverse = torch.where(held, 1 / gathered, 0.0)
        everywhere = bool(held.all())
        merged = []
        for name in names:
            old = self._state[name]
            total = self._sums.total(name).clone() if summed else full.zeros(old)
            for mean in means:
                where, new = mean.cuts[name], mean.tensors[name]
                where.add_to(total, new - where.take(old) if old.dtype == torch.float64 else new, mean.weight)
            total.mul_(inverse)
            if old.dtype == torch.float64:
                total.add_(old.reshape(full.view))  # in double precision, changes are summed: see Sums
            new = torch.empty_like(old, memory_format=torch.contiguous_format).view(full.view).copy_(total)
            if not everywhere:
                new = torch.where(held, new, old.reshape(full.view))
            merged.append(new.view(old.shape))
        return merged

    def _nested(self, name: str, chain: list[Mean]) -> Tensor:
        """Merge means of nested slices, widest first: inside each slice, the weight is uniform."""
        old, first = self._state[name], chain[0]
        if first.cuts[name].whole:
            new = first.tensors[name].clone(memory_format=torch.contiguous_format)
        else:
            new = old.to(first.tensors[name].dtype, copy=True, memory_format=torch.contiguous_format)
            first.cuts[name].blend(new, first.tensors[name], 1.0)
        weight = first.weight
        for mean in chain[1:]:
            weight += mean.weight
            mean.cuts[name].blend(new, mean.tensors[name], mean.weight / weight)
        return new.to(old.dtype)


def _nested(chain: list[Cut]) -> bool:
    """Return whether every slice is inside the one before it, and all consist of boxes."""
    return all(where.boxes is not None for where in chain) and all(b.inside(a) for a, b in pairwise(chain))


def _alike(axes: AxisMap, names: Iterable[str]) -> list[tuple[str, ...]]:
    """Group tensors that are always cut alike: same dims, and dropped with the same blocks."""
    owners: dict[str, list[str]] = {}
    for block, members in axes.blocks.items():
        for name in members:
            owners.setdefault(name, []).append(block)
    shared = set(axes.tied.values())
    groups: dict[object, list[str]] = {}
    for name in names:
        alone = name if name in shared else ""  # when its block is dropped, it may be kept under another name
        groups.setdefault((axes.dims[name], tuple(owners.get(name, ())), alone), []).append(name)
    return [tuple(group) for group in groups.values()]
