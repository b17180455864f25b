"""`Lazy`: a sequence whose items are computed on access, so that it can be as long as a population."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

T = TypeVar("T")
_KEEP = 256  # cached items: enough for the clients of one round


class Lazy(Sequence[T]):
    """`count` items, each computed by ``make(number)`` on access; the last `keep` are cached.

    >>> squares = Lazy(342_477, lambda number: number * number)
    >>> len(squares), squares[-1]
    (342477, 117289810576)
    """

    def __init__(self, count: int, make: Callable[[int], T], keep: int = _KEEP) -> None:
        self._arguments = (count, make, keep)
        self._count = count
        self._item = lru_cache(keep)(make)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError(f"there is no item {index}: there are {self._count}")
        return self._item(number)

    def __iter__(self) -> Iterator[T]:
        # the default stops at an IndexError, and would take one raised by `make` for the end
        return (self[number] for number in range(self._count))

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, self._arguments  # without the cached items
