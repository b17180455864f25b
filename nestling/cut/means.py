"""Running means of the updates of clients that hold the same slice: as fast as copying, and exact.

A mean moves towards every new value by a fraction of the difference, so values that were not trained do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from nestling.cut.extract import State
from nestling.cut.partial_merge import PartialMean
from nestling.cut.plan import Plan
from nestling.cut.slices import Cut
from nestling.errors import StateError
from nestling.torch_private import foreach_copy_, foreach_lerp_, fused_sgd_, has_fused_sgd

_FUSED = ({torch.float32}, {torch.float64})  # what PyTorch's fused kernels take


class Mean:
    """The weighted running mean of states that were cut alike.

    Parameters
    ----------
    room
        The memory of the mean, as `room_for` allocates it.
    shapes
        A key that must agree for the memory to be reused.
    like
        One of the states; all others have the same dtypes.
    """

    def __init__(self, room: dict[str, Tensor], shapes: object, like: State) -> None:
        self.tensors = room
        self.shapes = shapes
        self._mine = list(room.values())
        self._wider = any(tensor.dtype != like[name].dtype for name, tensor in room.items())
        fused = {tensor.dtype for tensor in room.values()} in _FUSED
        fused = fused and all(tensor.is_cpu for tensor in room.values()) and has_fused_sgd()
        self._move = _fused if fused else foreach_lerp_
        self.bytes = sum(like[name].nbytes for name in room)  # of a state; `room` is larger for half precision
        self.cuts: Mapping[str, Cut] = {}
        self.weight = 0.0

    def restart(self, cuts: Mapping[str, Cut]) -> Mean:
        """Start a new mean of tensors of the same shapes, with these cuts; return self."""
        self.cuts = cuts
        self.weight = 0.0
        return self

    def add(self, tensors: list[Tensor], weight: float) -> None:
        """Add one more client's tensors to the mean."""
        mine = self._mine
        if self._wider:
            tensors = [new.to(mean.dtype) for mean, new in zip(mine, tensors, strict=True)]
        self.weight += weight
        if self.weight == weight:
            foreach_copy_(mine, tensors)
        else:
            self._move(mine, tensors, weight / self.weight)  # by exactly zero where they are equal


@torch.no_grad()
def mean_state(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of states of one shape; of counters (integers), the highest.

    >>> one, other = ({"w": torch.tensor([w]), "steps": torch.tensor(steps)} for w, steps in ((1.0, 3), (4.0, 5)))
    >>> mean_state([one, other], [2, 1])
    {'w': tensor([2.]), 'steps': tensor(5)}
    """
    running = RunningMean(states[0])
    for state, weight in zip(states, weights, strict=True):
        running.add(state, weight)
    return running.value()


class RunningMean:
    """The weighted mean of states of one shape, added one by one; of counters (integers), the highest.

    Parameters
    ----------
    like
        One of the states.
    """

    def __init__(self, like: State) -> None:
        self._dtypes = {name: tensor.dtype for name, tensor in like.items()}
        self._floats = [name for name, tensor in like.items() if tensor.is_floating_point()]
        self._mean = Mean(room_for(self._floats, like), None, like)
        self._counters = {name: like[name].clone() for name in like if name not in self._mean.tensors}

    @torch.no_grad()
    def add(self, state: State, weight: float) -> None:
        """Add one more state."""
        self._mean.add([state[name] for name in self._floats], weight)
        for name, highest in self._counters.items():
            self._counters[name] = torch.maximum(highest, state[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return the mean before it is rounded to its dtypes; not copies."""
        return {**self._mean.tensors, **self._counters}

    def partial(self, plan: Plan) -> PartialMean:
        """Return the mean before it is rounded to its dtypes, with its weight; `plan` is that of the states."""
        return PartialMean(plan, self._mean.weight, self.tensors())

    def value(self) -> dict[str, Tensor]:
        """Return the mean, in the order and with the dtypes of the first state."""
        means = self._mean.tensors
        return {
            name: means[name].to(dtype) if name in means else self._counters[name]
            for name, dtype in self._dtypes.items()
        }


class SubmodelMeans:
    """Means of the tensors that every sub-model has for itself, over the clients that trained it.

    Sub-models are told apart by the keys of their plans (NeFL, Algorithm 2).

    Parameters
    ----------
    names
        The names of these tensors in the whole model.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._means: dict[str, tuple[Plan, RunningMean]] = {}

    def restart(self) -> None:
        """Start new means."""
        self._means = {}

    def check(self, plan: Plan, state: State) -> None:
        """Raise `StateError` if tensors of another shape were added for a plan of the same key."""
        if plan.key in self._means:
            for name, tensor in self._means[plan.key][1].tensors().items():
                if name not in state or state[name].shape != tensor.shape:
                    raise StateError(
                        f"plans with the key {plan.key} have {name!r} in two shapes: give each plan its key"
                    )

    def add(self, state: State, plan: Plan, weight: float) -> None:
        """Add the tensors of one more client, or the mean of several."""
        own = {name: state[name] for name in sorted(self.names & state.keys())}
        if own:
            if plan.key not in self._means:
                self._means[plan.key] = plan, RunningMean(own)
            self._means[plan.key][1].add(own, weight)

    def merge(self, part: PartialMean, whole: State) -> None:
        """Add the mean of a sub-model over several clients; `whole` has the devices and dtypes of the model."""
        own = {name: part.tensors[name].to(whole[name].device) for name in sorted(part.tensors)}
        if own and part.plan.key not in self._means:
            like = {name: tensor.to(whole[name].dtype) for name, tensor in own.items()}
            self._means[part.plan.key] = part.plan, RunningMean(like)
        if own:
            self._means[part.plan.key][1].add(own, part.weight)

    def partial(self) -> tuple[PartialMean, ...]:
        """Return all means, for `merge`."""
        return tuple(mean.partial(plan) for plan, mean in self._means.values())

    def value(self) -> dict[str, dict[str, Tensor]]:
        """Return all means: key of a plan → name → tensor."""
        return {key: mean.value() for key, (_, mean) in self._means.items()}


def room_for(names: Iterable[str], state: State) -> dict[str, Tensor]:
    """Allocate memory for the mean of states like this one; half precision is averaged in single precision."""
    return {
        name: torch.empty(
            state[name].shape, dtype=torch.promote_types(state[name].dtype, torch.float32), device=state[name].device
        )
        for name in names
    }


def _fused(means: list[Tensor], news: list[Tensor], share: float) -> None:
    """Move means by `share` of the way to new values, in one pass over memory.

    The kernel of SGD, p −= lr · (g + decay · p), is p += share · (g − p) for lr = −share and decay = −1. It is faster
    than lerp, which chooses between two formulas per value.
    """
    fused_sgd_(means, [new.contiguous() for new in news], [], lr=-share, weight_decay=-1.0)
