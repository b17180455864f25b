"""Blocks that can be dropped: the model still runs without them.

A module with a method ``dropped()`` is a block: the method returns its replacement (of a residual block, its shortcut).
In a model without any such module, blocks are detected in the run: children of a `ModuleList` or `Sequential`, at least
two of a class, that hold a matrix and add to their input (``x + f(x)``, perhaps normalised), with the same dims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nestling.axes.unify import Node, find, is_frozen

# Operations, beside element-wise ones and views, that pass a residual stream on.
CARRIERS = frozenset(
    [
        *["clone", "_to_copy", "native_dropout", "native_layer_norm", "rms_norm", "_fused_rms_norm"],
        *["native_group_norm", "native_batch_norm", "_batch_norm_with_update"],
        *["_native_batch_norm_legit", "_native_batch_norm_legit_no_training"],
    ]
)


class Streams:
    """Follows tensors through additions, norms and the like, but not through matrix products."""

    def __init__(self) -> None:
        self._carried: dict[int, frozenset[object]] = {}

    def mark(self, tensor: Tensor, token: object) -> None:
        """Attach `token` to `tensor` and to what is computed from it."""
        self._carried[id(tensor)] = self.reaching(tensor) | {token}

    def reaching(self, tensor: Tensor) -> frozenset[object]:
        """Return the tokens attached to `tensor`."""
        return self._carried.get(id(tensor), frozenset())

    def carry(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Pass the tokens of an operation's inputs on to its outputs."""
        tokens = frozenset[object]().union(*(self.reaching(tensor) for tensor in inputs))
        if tokens:
            for tensor in outputs:
                self._carried[id(tensor)] = tokens


class PassThrough(nn.Module):
    """Replaces a dropped block: the identity."""

    def forward(self, x: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        """Return `x` and ignore the block's other arguments."""
        return x


def replacement(block: nn.Module) -> nn.Module:
    """Return the module that replaces `block` when it is dropped."""
    return block.dropped() if _is_block(block) else PassThrough()  # type: ignore[operator]


def inside(block: str, others: Iterable[str]) -> bool:
    """Return whether a block is part of one of the others, and is dropped with it.

    >>> inside("stage.block2", ["stage", "stage.block2"]), inside("stage2", ["stage"])
    (True, False)
    """
    return any(block.startswith(f"{other}.") for other in others)


def _is_block(module: nn.Module) -> bool:
    return callable(getattr(module, "dropped", None))


class BlockFinder:
    """Watches a traced run and finds the modules that are blocks."""

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

    def __exit__(self, *_error: object) -> None:
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
        """Return the blocks, each with the state names that are dropped with it."""
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
            paths = [path for path in paths if not inside(path, paths)]
        blocks = {}
        for path in paths:
            kept = set(replacement(modules[path]).state_dict())
            blocks[path] = tuple(f"{path}.{name}" for name in modules[path].state_dict() if name not in kept)
        return blocks
