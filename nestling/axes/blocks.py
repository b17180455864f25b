"""Blocks that can be dropped: what is left of the model without them still runs on the same stream.

A module with a method ``dropped()`` is a block: the method returns what stands in for it when it is dropped (of a
residual block, its shortcut). A model without any such module gets its blocks by a look at the run: children of a
`ModuleList` or `Sequential`, at least two of a class, that hold a matrix and hand the tensor they take on to the one
they return (``x + f(x)``, perhaps normalised), with the very same dims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nestling.axes.unify import Node, find, is_frozen

# Operations, beside element-wise ones and views, through which a stream flows on.
CARRIERS = frozenset(
    [
        *["clone", "_to_copy", "native_dropout", "native_layer_norm", "rms_norm", "_fused_rms_norm"],
        *["native_group_norm", "native_batch_norm", "_batch_norm_with_update"],
        *["_native_batch_norm_legit", "_native_batch_norm_legit_no_training"],
    ]
)


class Streams:
    """Follows tensors through additions, norms and the like, but not through matrices."""

    def __init__(self) -> None:
        self._carried: dict[int, frozenset[object]] = {}

    def mark(self, tensor: Tensor, token: object) -> None:
        """Let `token` flow on from `tensor`."""
        self._carried[id(tensor)] = self.reaching(tensor) | {token}

    def reaching(self, tensor: Tensor) -> frozenset[object]:
        """Return the tokens that have flowed into `tensor`."""
        return self._carried.get(id(tensor), frozenset())

    def carry(self, given: list[Tensor], made: list[Tensor]) -> None:
        """Let tokens flow through one operation."""
        tokens = frozenset[object]().union(*(self.reaching(tensor) for tensor in given))
        if tokens:
            for tensor in made:
                self._carried[id(tensor)] = tokens


class PassThrough(nn.Module):
    """Stands in for a dropped block: returns what it is given."""

    def forward(self, x: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        """Return `x`, whatever else the block would have been told."""
        return x


def stand_in(block: nn.Module) -> nn.Module:
    """Return the module that takes the place of `block` when it is dropped."""
    return block.dropped() if _is_block(block) else PassThrough()  # type: ignore[operator]


def inside(block: str, others: Iterable[str]) -> bool:
    """Whether a block is a part of one of the others, and goes where that goes.

    >>> inside("stage.block2", ["stage", "stage.block2"]), inside("stage2", ["stage"])
    (True, False)
    """
    return any(block.startswith(f"{other}.") for other in others)


def _is_block(module: nn.Module) -> bool:
    return callable(getattr(module, "dropped", None))


class BlockFinder:
    """Watches a traced run and tells which modules are blocks."""

    def __init__(self, model: nn.Module, tracer: Any) -> None:
        self._model = model
        self._tracer = tracer
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, tuple[list[Node], list[Node]]] = {}
        self._paths = [path for path, module in model.named_modules() if _is_block(module) and path]
        self._guess = not self._paths

    def __enter__(self) -> None:
        if not self._guess:
            return
        for path, parent in self._model.named_modules():
            if isinstance(parent, nn.ModuleList | nn.Sequential):
                for name, child in parent.named_children():
                    label = f"{path}.{name}" if path else name
                    self._handles.append(child.register_forward_pre_hook(self._enter(label)))
                    self._handles.append(child.register_forward_hook(self._leave(label)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, label: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def look(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                self._tracer.streams.mark(args[0], label)

        return look

    def _leave(self, label: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def look(_module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
                if label in self._tracer.streams.reaching(out):
                    self._seen[label] = (self._tracer.get(args[0]), self._tracer.get(out))

        return look

    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Return the blocks, each with the names of the state that goes when it is dropped."""
        modules = dict(self._model.named_modules())
        paths = self._paths
        if self._guess:
            same = [
                path
                for path, (before, after) in self._seen.items()
                if len(before) == len(after)
                and all(
                    find(a) is find(b) or (is_frozen(a) and is_frozen(b) and a.size == b.size)
                    for a, b in zip(before, after, strict=True)
                )
                and any(weight.dim() > 1 for weight in modules[path].parameters())
            ]
            classes = Counter((path.rpartition(".")[0], type(modules[path])) for path in same)
            paths = [path for path in same if classes[path.rpartition(".")[0], type(modules[path])] > 1]
            paths = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
        found = {}
        for path in paths:
            stays = set(stand_in(modules[path]).state_dict())
            found[path] = tuple(f"{path}.{name}" for name in modules[path].state_dict() if name not in stays)
        return found
