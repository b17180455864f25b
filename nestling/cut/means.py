"""Running means of what clients with one and the same slice returned: as fast as copying, and exact.

A mean moves towards every new value by a share of the difference, so that where nothing was trained it moves by zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nestling.cut.extract import State
from nestling.cut.slices import Cut
from nestling.torch_private import foreach_copy_, foreach_lerp_, fused_sgd_, has_fused_sgd

_FUSED = ({torch.float32}, {torch.float64})  # what PyTorch's fused kernels take


class Mean:
    """The weighted running mean of states that were cut alike.

    Parameters
    ----------
    room
        Where the mean is kept, as `room_for` makes it.
    shapes
        What must agree for the room to be used again.
    like
        One of the states: all others have the same dtypes.
    """

    def __init__(self, room: dict[str, Tensor], shapes: object, like: State) -> None:
        self.tensors = room
        self.shapes = shapes
        self._mine = list(room.values())
        self._wider = any(tensor.dtype != like[name].dtype for name, tensor in room.items())
        fused = {tensor.dtype for tensor in room.values()} in _FUSED
        fused = fused and all(tensor.is_cpu for tensor in room.values()) and has_fused_sgd()
        self._move = _fused if fused else foreach_lerp_
        self.bytes = sum(like[name].nbytes for name in room)  # of a state: the room of half-precision ones is larger
        self.cuts: Mapping[str, Cut] = {}
        self.weight = 0.0

    def restart(self, cuts: Mapping[str, Cut]) -> Mean:
        """Begin anew, with tensors of the same shapes that were cut in this way; return itself."""
        self.cuts = cuts
        self.weight = 0.0
        return self

    def add(self, tensors: list[Tensor], weight: float) -> None:
        """Move the mean by what one more client returned, in the order of `tensors`."""
        mine = self._mine
        if self._wider:
            tensors = [new.to(mean.dtype) for mean, new in zip(mine, tensors, strict=True)]
        self.weight += weight
        if self.weight == weight:
            foreach_copy_(mine, tensors)
        else:
            self._move(mine, tensors, weight / self.weight)  # by exactly zero where they are equal


def room_for(names: Iterable[str], state: State) -> dict[str, Tensor]:
    """Return room for the mean of states like this one; half-precision tensors are averaged in single precision."""
    return {
        name: torch.empty(
            state[name].shape, dtype=torch.promote_types(state[name].dtype, torch.float32), device=state[name].device
        )
        for name in names
    }


def _fused(means: list[Tensor], news: list[Tensor], share: float) -> None:
    """Move means by `share` of the way to new values, in one pass over memory.

    The kernel of SGD, p −= lr · (g + decay · p), is p += share · (g − p) for lr = −share and decay = −1. It is quicker
    than lerp, which weighs two formulas against each other.
    """
    fused_sgd_(means, [new.contiguous() for new in news], [], lr=-share, weight_decay=-1.0)
