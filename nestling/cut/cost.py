"""`cost`: the size, arithmetic and training memory of a sub-model, computed without allocating it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nestling.axes import AxisMap
from nestling.axes.shapes import ShapeMode, on_shapes, outputs_of, tensors_in
from nestling.axes.skeleton import tensors
from nestling.cut.plan import Plan
from nestling.cut.resize import resize
from nestling.errors import BuildError, first_line
from nestling.torch_private import TorchDispatchMode, tree_map_only


@dataclass(frozen=True)
class Cost:
    """The cost of a sub-model.

    Attributes
    ----------
    parameters
        The number of parameters, trainable or not, tied ones once.
    bytes
        Bytes sent to or from a device: parameters and saved buffers.
    macs
        Multiply-accumulates of one forward pass on the whole example.
    activations
        Peak bytes of one training step beside the weights and their gradients.
    memory
        Peak bytes of one training step with plain SGD: weights, gradients, activations.
    """

    parameters: int
    bytes: int
    macs: int
    activations: int
    memory: int


def cost(
    model: nn.Module, axes: AxisMap, plan: Plan, *example: Any, batch: int | None = None, **kwexample: Any
) -> Cost:
    """Return the cost of the sub-model of `plan`, run on `example`.

    Nothing of the model's size is allocated. With `batch`, every tensor of the example is treated as having that many
    rows.

    >>> import nestling
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> cost(net, axes, nestling.plan(axes, width=0.5), torch.zeros(1, 4))
    Cost(parameters=30, bytes=120, macs=24, activations=..., memory=...)
    """
    small = resize(model, axes, plan)
    parameters = list(small.parameters())
    saved = {id(tensor): tensor for tensor in small.state_dict(keep_vars=True).values()}
    if batch is not None and batch < 1:
        raise BuildError(f"a batch has at least one sample, not {batch}")
    if batch is not None:
        example, kwexample = with_batch(batch, example, kwexample)
    try:
        macs, activations = on_shapes(lambda args, kwargs: _step(small, args, kwargs), example, kwexample)
    except Exception as problem:
        raise BuildError(
            f"the sub-model of plan {plan.key!r} could not be run on the example: {first_line(problem)}"
        ) from problem
    weights = sum(tensor.nbytes for tensor in saved.values())
    gradients = sum(tensor.nbytes for tensor in parameters if tensor.requires_grad)
    return Cost(
        parameters=sum(tensor.numel() for tensor in parameters),
        bytes=weights,
        macs=macs,
        activations=activations,
        memory=weights + gradients + activations,
    )


def with_batch(
    batch: int, example: tuple[Any, ...], kwexample: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example whose tensors have `batch` rows, which are all the first one, without copies of it.

    >>> with_batch(3, (torch.ones(1, 2),), {})[0][0].shape
    torch.Size([3, 2])
    """

    def rows(tensor: Tensor) -> Tensor:
        return tensor[:1].expand(batch, *tensor.shape[1:]) if tensor.dim() else tensor

    args, kwargs = tree_map_only(Tensor, rows, (example, kwexample))
    return args, kwargs


def _step(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Run one training step on shapes; return the forward pass's MACs and the peak bytes of activations."""
    model.zero_grad()
    inputs = tensors_in([args, kwargs])
    shapes = ShapeMode()
    flops, memory = FlopCounterMode(display=False), _Memory([*(x for _, x in tensors(model)), *inputs], shapes)
    with torch.enable_grad(), shapes, memory:
        with flops:
            result = model(*args, **kwargs)
        losses = [out.float().sum() for out in outputs_of(result) if out.requires_grad]
        del result
        if losses:
            torch.stack(losses).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return flops.get_total_flops() // 2, sum(tensor.nbytes for tensor in inputs) + memory.peak_without(gradients)


class _Memory(TorchDispatchMode):
    """Tracks the bytes of all storages created inside this mode, except those in `known`."""

    def __init__(self, known: list[Tensor], shapes: ShapeMode) -> None:
        super().__init__()
        self._known = {_address(tensor) for tensor in known}
        self._shapes = shapes
        self._born: dict[int, int] = {}  # address → number of the operation that created it
        self._live = 0
        self._history: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            address = _address(tensor)
            if address in self._shapes.addresses:  # the twin of an input counts as the input
                continue
            if address not in self._known and address not in self._born:
                storage = tensor.untyped_storage()
                self._born[address] = len(self._history)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._freed, address, storage.nbytes())
        self._history.append(self._live)
        return out

    def _freed(self, address: int, size: int) -> None:
        self._born.pop(address, None)  # the address may be reused
        self._live -= size

    def peak_without(self, kept: list[Tensor]) -> int:
        """Return the peak of bytes in use, without the tensors in `kept`, which exist to the end."""
        history = self._history
        for tensor in kept:
            born = self._born.get(_address(tensor))
            if born is not None:
                size = tensor.untyped_storage().nbytes()
                history = [live - size if when >= born else live for when, live in enumerate(history)]
        return max(history, default=0)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
