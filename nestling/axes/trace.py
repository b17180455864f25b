"""`trace`: find the axes of any `nn.Module` by running it once on tensors that have shapes but no values.

Every operation of the model passes through `Tracer`, which applies the rules of `rules` and `rules_shape`. Dims that
they unify become one axis; operations without a rule freeze their dims, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from typing import Any

import torch
from torch import Tensor, nn

from nestling.axes.axismap import AxisMap
from nestling.axes.blocks import CARRIERS, BlockFinder, Streams
from nestling.axes.compare import COUNTED, difference, prime_sizes
from nestling.axes.couple import couple
from nestling.axes.naming import axis_map
from nestling.axes.rules import RULES, Args, constant, is_pointwise, pointwise
from nestling.axes.rules_shape import VIEWS
from nestling.axes.shapes import ShapeMode, on_shapes, outputs_of, tensors_in
from nestling.axes.shrink import shrunk
from nestling.axes.skeleton import copy_with, tensors
from nestling.axes.unify import Clash, Node, find, freeze, leaves, use
from nestling.draws import drawing
from nestling.errors import NestlingError, TraceError, first_line
from nestling.torch_private import tree_leaves

_MAX_TRIED_ALONE = 12  # with more groups than these, they are only tried together
_FAST_ATTENTION = threading.RLock()


def trace(model: nn.Module, *example: Any, **kwexample: Any) -> AxisMap:
    """Return the axes along which `model` can be cut, found by running it once on `example`.

    A copy without values is run in the model's mode (train or eval), or in eval mode if it cannot train on the example
    (batch norm on a single sample): a model of billions of parameters takes seconds and no memory, and `model` itself
    is not changed. The example's batch size does not matter. The model's outputs are frozen: of a result with a
    ``logits`` field, only the logits.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> axes = trace(net, torch.zeros(2, 3, 8, 8))
    >>> axes.axes
    {'model.0': 8}
    >>> print(axes.dims["4.weight"], "|", axes.frozen["model.4"])
    model.4 (model.0 36) | output of the model
    """
    _check_model(model)
    axes = find_axes(model, example, kwexample)
    if axes.groups:
        axes = _freeze_counted_groups(model, axes, example, kwexample)
    if not axes.axes:
        why = next((axis.frozen for axis in axes.table.values() if axis.role == "hidden"), "")
        raise TraceError(
            f"{type(model).__name__} has nothing to cut: "
            + (f"every hidden axis is frozen, the first because: {why}" if why else "it has no hidden axis")
        )
    return axes


def _freeze_counted_groups(
    model: nn.Module, axes: AxisMap, example: tuple[Any, ...], kwexample: dict[str, Any]
) -> AxisMap:
    """Freeze the groups (heads) whose number is hard-coded, found by changing it and tracing again.

    Four heads of width 2 and two of width 4 have tensors of the same shape, so nothing else would show it.
    """
    groups = sorted(axes.groups)

    def follows(names: list[str]) -> bool:
        sizes = prime_sizes(axes, names)
        try:
            return not difference(axes, sizes, find_axes(shrunk(model, axes, sizes), example, kwexample))
        except NestlingError:
            return False

    if follows(groups):
        return axes
    fixed = [name for name in groups if not follows([name])] if len(groups) <= _MAX_TRIED_ALONE else groups
    return axes.freeze(*map(escape, fixed or groups), why=COUNTED)


def find_axes(model: nn.Module, example: tuple[Any, ...], kwexample: dict[str, Any]) -> AxisMap:
    """Run `model` once and return its axes, even if none can be cut; groups are not verified."""
    try:
        twin, tracer, known, blocks = _traced(model, example, kwexample)
    except NestlingError:
        raise
    except Exception as problem:
        raise TraceError(f"{type(model).__name__} could not be run on the example: {first_line(problem)}") from problem
    couple(twin, known, tracer.producers)
    for nodes in known.values():
        for node in nodes:
            for leaf in leaves(node):
                if not leaf.used:
                    freeze(leaf, "never used by the forward pass")
                elif not leaf.produced:
                    freeze(leaf, "its size is written in the model's code")
    return axis_map(twin, known, tracer.producers, blocks)


_Traced = tuple[nn.Module, "Tracer", dict[str, list[Node]], dict[str, tuple[str, ...]]]


def _traced(model: nn.Module, example: tuple[Any, ...], kwexample: dict[str, Any]) -> _Traced:
    try:
        return on_shapes(lambda args, kwargs: _run(model, model.training, args, kwargs), example, kwexample)
    except NestlingError:
        raise
    except Exception as first:
        if not model.training:
            raise
        try:
            return on_shapes(lambda args, kwargs: _run(model, False, args, kwargs), example, kwexample)
        except Exception:
            raise first from None


def _run(model: nn.Module, training: bool, example: tuple[Any, ...], kwexample: dict[str, Any]) -> _Traced:
    """Run a copy of `model` without values; return it, the tracer, the dims of its tensors, and its blocks."""
    twin = copy_with(model, lambda _, old: torch.empty_like(old, device="meta"))
    if training != model.training:
        twin.train(training)
    tracer = Tracer()
    known = _register(tracer, twin)
    for given in tree_leaves((example, kwexample)):
        if isinstance(given, Tensor):
            tracer.set(given, [Node(size, "input of the model", role="input") for size in given.shape])
    finder = BlockFinder(twin, tracer)
    draws = drawing(torch.Generator().manual_seed(0))
    with _without_fast_attention(), torch.no_grad(), draws, finder, tracer:
        result = twin(*example, **kwexample)
    for output in outputs_of(result):
        tracer.finish(output)
    return twin, tracer, known, finder.blocks()


@contextmanager
def _without_fast_attention() -> Iterator[None]:
    """Switch off attention's fused kernels, which would hide its operations; the switch is global to the process."""
    with _FAST_ATTENTION:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TraceError(f"trace needs an nn.Module, not {type(model).__name__}")
    for name, tensor in tensors(model):
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise TraceError(
                f"{type(model).__name__} cannot be traced yet: its parameter {name!r} has no shape before a first run"
            )


def _register(tracer: Tracer, twin: nn.Module) -> dict[str, list[Node]]:
    """Set the dims of every tensor of the model: free for parameters and saved buffers, frozen for the rest."""
    saved = set(twin.state_dict(keep_vars=True))
    known: dict[str, list[Node]] = {}
    for name, tensor in tensors(twin):
        if not tracer.has(tensor):
            why = ""
            if name not in saved:
                why = "meets a buffer that is not saved with the model"
            elif tensor.is_complex():
                why = "complex values"
            elif not tensor.is_floating_point():
                why = "a buffer of whole numbers"
            tracer.set(tensor, [Node(size, why) for size in tensor.shape])
            if isinstance(tensor, nn.Parameter):
                tracer.registered[id(tensor)] = name
        if name in saved:
            known[name] = tracer.get(tensor)
    return known


class Tracer(ShapeMode):
    """Tracks the dims of every tensor through every operation."""

    def __init__(self) -> None:
        super().__init__()
        self._dims: dict[int, list[Node]] = {}
        self._alive: list[Tensor] = []  # an id is only valid as long as its tensor exists
        self.registered: dict[int, str] = {}
        self.producers: list[tuple[Node, str]] = []
        self.streams = Streams()
        self._pending: dict[int, list[tuple[Node, str]]] = {}

    def has(self, tensor: Tensor) -> bool:
        """Return whether the dims of `tensor` were set."""
        return id(tensor) in self._dims

    def _fits(self, tensor: Tensor) -> bool:
        return self.has(tensor) and [node.size for node in self._dims[id(tensor)]] == list(tensor.shape)

    def get(self, tensor: Tensor) -> list[Node]:
        """Return the dims of `tensor`; an unknown tensor is a constant of the model's code."""
        if id(tensor) not in self._dims:
            self.set(tensor, [constant(size) for size in tensor.shape])
        return [find(node) for node in self._dims[id(tensor)]]

    def set(self, tensor: Tensor, dims: Sequence[Node]) -> None:
        """Set the dims of `tensor`."""
        if [node.size for node in dims] != list(tensor.shape):
            raise Clash(f"a rule gave dims {[node.size for node in dims]} to a shape {list(tensor.shape)}")
        self._dims[id(tensor)] = list(dims)
        self._alive.append(tensor)

    def produces(self, node: Node, by: Tensor, name_it: bool = True) -> None:
        """Record that a parameter (or a view of one) produces a dim; axes are named after these parameters."""
        name = self.registered.get(id(by))
        if name is not None:
            if name_it:
                self.producers.append((node, name))
            for leaf in leaves(node):
                leaf.produced = True

    def twin(self, real: Tensor) -> Tensor:
        """Return the tensor without values that replaces `real`, with its dims."""
        twin = super().twin(real)
        if not self.has(twin):
            self.set(twin, self.get(real))
        return twin

    def _use(self, tensor: Tensor) -> None:
        for node in self.get(tensor):
            use(node)
        for node, why in self._pending.pop(id(tensor), ()):
            freeze(node, why)

    def finish(self, output: Tensor) -> None:
        """Freeze the dims of an output of the model."""
        self._use(output)
        for node in self.get(output):
            freeze(node, "output of the model", "output")

    def freeze_on_use(self, tensor: Tensor, node: Node, why: str) -> None:
        """Freeze `node` once something is computed from `tensor`, but not if only its shape is read."""
        self._pending.setdefault(id(tensor), []).append((node, why))

    def seen(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Apply the rule of an operation that was just run."""
        name = func.overloadpacket.__name__
        inputs = tensors_in([args, kwargs])
        if not tensors_in(out):
            if func._schema.is_mutable:  # it writes to its inputs in an unknown way
                for tensor in inputs:
                    for node in self.get(tensor):
                        freeze(node, f"no rule for {func.overloadpacket}")
            return
        if name in VIEWS or name in CARRIERS or is_pointwise(func):
            self.streams.carry(inputs, tensors_in(out))
        if name in VIEWS:
            for view in tensors_in(out):
                if id(inputs[0]) in self.registered:
                    self.registered[id(view)] = self.registered[id(inputs[0])]
                for node, why in self._pending.get(id(inputs[0]), ()):
                    self.freeze_on_use(view, node, why)
        else:
            for tensor in inputs:
                self._use(tensor)
        rule = RULES.get(name) or RULES.get(name.removesuffix("_")) or (pointwise if is_pointwise(func) else None)
        try:
            if rule is None:
                raise Clash(f"no rule for {func.overloadpacket}")
            rule(self, out, _named(func, args, kwargs))
        except Clash as clash:
            for tensor in inputs:
                for node in self.get(tensor):
                    freeze(node, str(clash))
            for tensor in tensors_in(out):
                if not self._fits(tensor):
                    self.set(tensor, [constant(size, str(clash)) for size in tensor.shape])


def _named(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Args:
    """Return the arguments of an operation by their names in its schema, including defaults."""
    named = {}
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            named[argument.name] = args[place]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named
