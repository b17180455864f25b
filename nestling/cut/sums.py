"""Double-precision sums of slices that are all different, such as random sets and parts of slices.

The tensors of a model are stored one after the other in a few pools, as rows of the trailing values that no plan cuts
(such as the nine values of a 3×3 kernel). A slice is then a list of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nestling.cut.partial_merge import PartialSum
from nestling.cut.scatter import Places, scatter
from nestling.cut.slices import Cut, places_of

_MIN_ALONE = 4096  # values from which a separate operation pays off
_ZERO = np.zeros(1, dtype=np.int64)


class Sums:
    """Weighted sums of slices, and the total weight of every coordinate.

    A double-precision sum returns a single-precision value exactly, however often it was added. For double-precision
    values, changes are summed instead, so that a value that does not change is exact, too.

    Parameters
    ----------
    state
        The tensors of the whole model; they are not changed.
    whole
        For every tensor, the cut that keeps all of it.
    """

    def __init__(self, state: Mapping[str, Tensor], whole: Mapping[str, Cut]) -> None:
        self._whole = whole
        self._where: dict[str, tuple[_Pool, int]] = {}
        self._pools: dict[object, _Pool] = {}
        for name, tensor in state.items():
            key = (whole[name].width, tensor.is_complex(), tensor.device)
            pool = self._pools.setdefault(key, _Pool(*key))
            self._where[name] = pool, pool.rows
            pool.rows += tensor.numel() // whole[name].width
        self.restart(state)

    def restart(self, state: Mapping[str, Tensor]) -> None:
        """Start new sums, from a state of the same shapes."""
        self._state = state
        self._used: set[str] = set()
        for pool in self._pools.values():
            pool.clear()

    def __contains__(self, name: str) -> bool:
        """Return whether anything was added to a tensor."""
        return name in self._used

    def add(self, tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut], weight: float) -> None:
        """Add `weight` times the slices at the places where they were cut."""
        known: dict[int, tuple[Places, Places]] = {}  # many tensors have the same cut
        small: dict[_Pool, tuple[list[Tensor], list[Places]]] = {}
        for name, tensor in tensors.items():
            cut, (pool, start) = cuts[name], self._where[name]
            if self._state[name].dtype == torch.float64:
                tensor = tensor - cut.take(self._state[name])  # noqa: PLW2901 - sum changes: see above
            self._used.add(name)
            size = tensor.numel()
            if size >= _MIN_ALONE and cut.boxes is not None and size >= _MIN_ALONE * len(cut.boxes):
                cut.add_to(self.total(name), tensor, weight)
                cut.count(self.weight(name), weight)
                continue
            if id(cut) not in known:
                known[id(cut)] = places_of(cut)
            if size >= _MIN_ALONE:
                scatter(*pool.room, known[id(cut)], tensor, weight, start=start)
            else:
                outer, inner = known[id(cut)]
                values, rows = small.setdefault(pool, ([], []))
                values.append(tensor.reshape(-1))
                rows.append(np.add.outer(outer + start, inner).ravel())
        for pool, (values, rows) in small.items():  # together: one call per tensor would take longer than the sum
            scatter(*pool.room, (np.concatenate(rows), _ZERO), torch.cat(values), weight)

    def merge(self, other: PartialSum) -> None:
        """Add the sums of tensors that are cut alike."""
        for name, total in other.totals.items():
            totals, weights = self._rows(name)
            self._used.add(name)
            if other.rows is None:
                totals.add_(total.to(totals.device))
                weights.add_(other.weights.to(weights.device))
            else:
                rows = other.rows.to(totals.device)
                totals.index_add_(0, rows, total.to(totals.device))
                weights.index_add_(0, rows, other.weights.to(weights.device))

    def partial(self, names: Sequence[str]) -> PartialSum:
        """Return the sums of tensors that are cut alike, without the rows that nobody held; views, where all are."""
        weights = self._rows(names[0])[1]
        held = weights > 0
        if bool(held.all()):
            return PartialSum({name: self._rows(name)[0] for name in names}, weights)
        rows = held.nonzero().squeeze(1)
        return PartialSum({name: self._rows(name)[0][rows] for name in names}, weights[rows], rows)

    def total(self, name: str) -> Tensor:
        """Return the sum of a tensor, viewed by its factors (float64); not a copy."""
        return self._rows(name)[0].view(self._whole[name].view)

    def weight(self, name: str) -> Tensor:
        """Return the weights of a tensor's rows, shaped as `Cut.blank` (float64); not a copy."""
        return self._rows(name)[1].view(self._whole[name].blank_shape)

    def _rows(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the sum of a tensor as rows, (rows, width), and their weights, (rows,); not copies."""
        pool, start = self._where[name]
        totals, weights = pool.room
        count = self._state[name].numel() // pool.width
        return totals[start : start + count], weights[start : start + count]


class _Pool:
    """The rows of all tensors with rows of one width."""

    def __init__(self, width: int, is_complex: bool, device: torch.device) -> None:
        self.width = width
        self.rows = 0
        self._dtype = torch.complex128 if is_complex else torch.float64
        self._device = device
        self._room: tuple[Tensor, Tensor] | None = None

    def clear(self) -> None:
        for tensor in self._room or ():
            tensor.zero_()

    @property
    def room(self) -> tuple[Tensor, Tensor]:
        """Totals, (rows, width), and weights, (rows,)."""
        if self._room is None:  # fleets with nested slices never need it
            self._room = (
                torch.zeros(self.rows, self.width, dtype=self._dtype, device=self._device),
                torch.zeros(self.rows, dtype=torch.float64, device=self._device),
            )
        return self._room
