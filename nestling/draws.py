"""Random numbers for code that draws from PyTorch's global generator, such as dropout and initialisers.

That generator is shared by the whole process. Seeding it would change the numbers of other code that draws from it:
another run in another thread, or the caller. `drawing` therefore passes our own generator to every random operation of
this thread, by a dispatch mode. Dropout layers of `nestling.kernels.seeded_dropout` use it directly, so that the usual
models do not pay for the mode. In our own processes, where nothing else draws, PyTorch's generator is seeded, which
costs nothing.

One case cannot be handled this way: code that repeats a forward pass during the backward pass, such as gradient
checkpointing, saves and restores PyTorch's generator to draw the same numbers twice. `no_draws` marks the backward
pass, a draw there raises `DrawnInBackward`, and the caller trains again with ``shared=True``: with PyTorch's generator,
one client at a time in this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from nestling.torch_private import TorchDispatchMode

_T = TypeVar("_T")
_LOCAL = threading.local()
_SHARED = threading.RLock()  # held while PyTorch's generator is in use
_process_is_ours = False


class DrawnInBackward(RuntimeError):
    """A random number was drawn in a backward pass, which repeats a forward pass."""


def own_this_process() -> None:
    """Declare that only Nestling draws random numbers in this process; workers call it when they start."""
    global _process_is_ours  # noqa: PLW0603
    _process_is_ours = True


def process_is_ours() -> bool:
    """Return whether `own_this_process` was called.

    >>> process_is_ours()
    False
    """
    return _process_is_ours


def current_generator() -> torch.Generator | None:
    """Return the generator that layers of this thread draw from, or None for PyTorch's.

    >>> mine = torch.Generator()
    >>> with drawing(mine):
    ...     current_generator() is mine
    True
    """
    generator: torch.Generator | None = getattr(_LOCAL, "generator", None)
    if generator is not None and getattr(_LOCAL, "forbidden", False):
        raise DrawnInBackward("random numbers are drawn in the backward pass")
    return generator


@contextmanager
def drawing(generator: torch.Generator, *, everything: bool = True, shared: bool = False) -> Iterator[None]:
    """Let random operations of this thread on the CPU draw from `generator` instead of PyTorch's.

    Parameters
    ----------
    generator
        The generator to draw from.
    everything
        Whether all operations use it. Otherwise only layers that call `current_generator` do, which costs nothing.
    shared
        Whether to seed PyTorch's generator instead, and restore it afterwards: for forward passes that save and restore
        it themselves. Draws of other threads then interfere with ours.

    Examples
    --------
    >>> with drawing(torch.Generator().manual_seed(3)):
    ...     once = torch.rand(2), torch.nn.functional.dropout(torch.ones(4))
    >>> with drawing(torch.Generator().manual_seed(3)):
    ...     again = torch.rand(2), torch.nn.functional.dropout(torch.ones(4))
    >>> torch.equal(once[0], again[0]), torch.equal(once[1], again[1])
    (True, True)
    """
    if shared or _process_is_ours:
        with _as_default(generator):
            yield
        return
    before = getattr(_LOCAL, "generator", None)
    _LOCAL.generator = generator
    try:
        if everything:
            with _FromGenerator(generator):
                yield
        else:
            yield
    finally:
        _LOCAL.generator = before


@contextmanager
def no_draws() -> Iterator[None]:
    """Raise `DrawnInBackward` if something draws from the generator of `drawing` inside this context."""
    before = getattr(_LOCAL, "forbidden", False)
    _LOCAL.forbidden = True
    try:
        yield
    finally:
        _LOCAL.forbidden = before


def counted_draws(action: Callable[[], _T]) -> tuple[_T, int]:
    """Return the result of `action`, and how many of its CPU operations drew random numbers without a generator.

    PyTorch's generator is not changed.

    >>> counted_draws(lambda: torch.rand(3))[1], counted_draws(lambda: torch.zeros(3))[1]
    (1, 0)
    """
    mode = _FromGenerator(torch.Generator().manual_seed(0))
    before = getattr(_LOCAL, "generator", None)
    _LOCAL.generator = None
    try:
        with mode:
            return action(), mode.draws
    finally:
        _LOCAL.generator = before


@contextmanager
def _as_default(generator: torch.Generator) -> Iterator[None]:
    """Give PyTorch's generator the state of `generator`; afterwards copy the state back and restore the old one."""
    default = torch.default_generator
    with _SHARED:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


class _FromGenerator(TorchDispatchMode):
    """Passes a generator to every random operation on the CPU that has none."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self.draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, with our generator if it would draw from PyTorch's."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        position = _position_of_generator(func)
        if position is not None:
            generator = args[position] if position < len(args) else kwargs.get("generator")
            if generator is not None:
                return func(*args, **kwargs)
            self._count()
            return func(*args[:position], **kwargs | {"generator": self._generator})
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:  # it has no dropout
            return func(*args, **kwargs)
        self._count()
        draw = _LIKE.get(func.overloadpacket)
        if draw is not None:
            return draw(self._generator, *args, **kwargs)
        overload = _with_generator(func)
        if overload is not None:
            return overload(*args, **kwargs, generator=self._generator)
        with _as_default(self._generator):
            return func(*args, **kwargs)

    def _count(self) -> None:
        if getattr(_LOCAL, "forbidden", False):
            raise DrawnInBackward("random numbers are drawn in the backward pass")
        self.draws += 1


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation computes on the CPU, by its argument `device` or by its tensors."""
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).type == "cpu"
    first = next((value for value in args if isinstance(value, Tensor)), None)
    return first is None or first.device.type == "cpu"


@cache
def _position_of_generator(func: Any) -> int | None:
    """Return the position of an operation's argument `generator`, or None if it has none."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index("generator") if "generator" in names else None


@cache
def _with_generator(func: Any) -> Any:
    """Return the overload of an operation that takes the same arguments and a generator, or None."""
    wanted = sorted([*(argument.name for argument in func._schema.arguments), "generator"])
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        if sorted(argument.name for argument in overload._schema.arguments) == wanted:
            return overload
    return None


def _rand_like(generator: torch.Generator, like: Tensor, **options: Any) -> Tensor:
    return torch.empty_like(like, **options).uniform_(generator=generator)


def _randn_like(generator: torch.Generator, like: Tensor, **options: Any) -> Tensor:
    return torch.empty_like(like, **options).normal_(generator=generator)


def _randint_like(generator: torch.Generator, like: Tensor, *limits: int, **options: Any) -> Tensor:
    low, high = limits if len(limits) > 1 else (0, limits[0])
    return torch.empty_like(like, **options).random_(low, high, generator=generator)


# composed as in PyTorch, so that the numbers are the same
_LIKE = {
    torch.ops.aten.rand_like: _rand_like,
    torch.ops.aten.randn_like: _randn_like,
    torch.ops.aten.randint_like: _randint_like,
}
