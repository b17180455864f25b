"""Run a model on shapes alone: its parameters, and everything computed from them, have no values.

The example, and positions and masks that the model's code creates, keep their values until they are combined with a
tensor without; so code that depends on them ("is anything masked?") works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from nestling.torch_private import TorchDispatchMode, tree_map_only

T = TypeVar("T")

_CONSTRUCTORS = frozenset(["arange", "linspace", "ones", "full", "eye", "tril_indices", "triu_indices", "_to_copy"])
_MAX_VALUES = 1 << 22  # of a tensor that the code creates; larger ones stay without values


class ShapeMode(TorchDispatchMode):
    """Inside this mode, operations on a tensor without values (on the meta device) return one without values."""

    def __init__(self) -> None:
        super().__init__()
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}
        self.addresses: set[int] = set()  # of the storages of twins

    def twin(self, real: Tensor) -> Tensor:
        """Return the tensor without values that replaces `real`."""
        if id(real) not in self._twins:
            twin = torch.empty_like(real, device="meta")
            self._twins[id(real)] = twin, real  # `real` is kept, so that its id stays its own
            self.addresses.add(int(twin.untyped_storage()._cdata))
        return self._twins[id(real)][0]

    def seen(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Handle an operation that was just run; for subclasses."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        valued = not any(tensor.is_meta for tensor in tensors_in([args, kwargs]))
        if not valued:
            args, kwargs = tree_map_only(
                Tensor, lambda tensor: tensor if tensor.is_meta else self.twin(tensor), (args, kwargs)
            )
        out = func(*args, **kwargs)
        if valued and func.overloadpacket.__name__ in _CONSTRUCTORS and out.is_meta and out.numel() <= _MAX_VALUES:
            kwargs = {name: "cpu" if name == "device" else value for name, value in kwargs.items()}
            out = func(*args, **kwargs)
        self.seen(func, args, kwargs, out)
        return out


def on_shapes(run: Callable[[tuple[Any, ...], dict[str, Any]], T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Return ``run(args, kwargs)``; if that fails, the same with all tensors on the meta device.

    A few layers of torch require one device for all inputs. If both fail, the first error is raised.
    """
    try:
        return run(args, kwargs)
    except Exception as first:
        try:
            return run(*tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs)))
        except Exception:
            raise first from None


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in an argument, a list of them, or a dictionary of arguments.

    >>> len(tensors_in([torch.zeros(1), {"other": torch.zeros(2), "alpha": 1}]))
    2
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def outputs_of(result: Any) -> list[Tensor]:
    """Return the tensors in a model's result; if it has logits, only those.

    >>> len(outputs_of({"scores": torch.zeros(1), "more": [torch.zeros(2), None]}))
    2
    """
    if isinstance(result, Tensor):
        return [result]
    logits = getattr(result, "logits", None)
    if logits is not None:
        return outputs_of(logits)
    if isinstance(result, Mapping):
        return [tensor for item in result.values() for tensor in outputs_of(item)]
    if dataclasses.is_dataclass(result):
        return [tensor for item in dataclasses.fields(result) for tensor in outputs_of(getattr(result, item.name))]
    if isinstance(result, list | tuple | set):
        return [tensor for item in result for tensor in outputs_of(item)]
    return []
