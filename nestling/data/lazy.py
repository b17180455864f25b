"""`Lazy`: a sequence whose items are computed on access, so that it can be as long as a population."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
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
        self._count = count
        self._make = make
        self._keep = keep
        self._cached: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(self._count))]
        number = place + self._count if place < 0 else place
        if not 0 <= number < self._count:
            raise IndexError(f"there is no item {place}: there are {self._count}")
        item = self._cached.pop(number) if number in self._cached else self._make(number)
        if self._keep:
            self._cached[number] = item
            if len(self._cached) > self._keep:
                self._cached.popitem(last=False)
        return item

    def __iter__(self) -> Iterator[T]:
        # the default stops at an IndexError, and would take one raised by `make` for the end
        return (self[number] for number in range(self._count))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": OrderedDict()}
