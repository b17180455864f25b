"""Apportion clients to kinds (levels, devices) by their shares, in exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nestling.errors import FleetError
from nestling.number_checks import parse_number, real
from nestling.seeds import numpy_stream

Kind = TypeVar("Kind")
Part = tuple[object, object]  # a kind, and its share or None


def parts(what: str, mix: object, split: Callable[[str], list[str]], parse: Callable[[str], Part]) -> list[Part]:
    """Return a mix as pairs of a kind and its share (None if it has no share).

    A mix is a text, which `split` divides, a mapping, or a list of kinds or of pairs; `parse` parses one part.

    >>> parts("a mix", {"a": 1, "e": 9}, str.split, name_and_share)
    [('a', 1), ('e', 9)]
    """
    if isinstance(mix, Mapping):
        return list(mix.items())
    if not isinstance(mix, str | Sequence):
        raise FleetError(f"{what} must be a text, a list or a mapping from names to shares, not {mix!r}")
    pairs: list[Part] = []
    for item in split(mix) if isinstance(mix, str) else mix:
        if isinstance(item, str):
            pairs.append(parse(item))
        elif isinstance(item, tuple | list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            pairs.append((item, None))
    return pairs


def name_and_share(text: str) -> Part:
    """Parse ``name`` or ``name:share``.

    >>> name_and_share("laptop:0.25"), name_and_share("laptop")
    (('laptop', 0.25), ('laptop', None))
    """
    name, colon, share = text.partition(":")
    return name.strip(), parse_number(share.strip()) if colon else None


def normalise(
    kinds: Sequence[Kind], shares: Sequence[object], name: Callable[[Kind], str]
) -> tuple[tuple[Kind, float], ...]:
    """Return kinds with shares that sum to 1: proportional to `shares`, or equal if all are None.

    >>> normalise(["a", "e"], [1, 3], str)
    (('a', 0.25), ('e', 0.75))
    """
    if not kinds:
        raise FleetError("a mix holds nothing: name at least one kind, such as 'a'")
    if all(share is None for share in shares):
        return tuple((kind, 1 / len(kinds)) for kind in kinds)
    for kind, share in zip(kinds, shares, strict=True):
        if share is None:
            raise FleetError(f"{name(kind)!r} has no share, but others have one: give shares to all or to none")
    numbers = [real(f"the share of {name(kind)!r}", share, above=0) for kind, share in zip(kinds, shares, strict=True)]
    total = sum(map(Fraction, numbers), Fraction())  # exact, so that "a1-e9" gives 0.1 and 0.9, and nothing overflows
    if abs(total - 1) > 1e-12:  # shares that sum to 1 stay as they are
        numbers = [float(Fraction(number) / total) for number in numbers]
    return tuple(zip(kinds, numbers, strict=True))


def counts(shares: Sequence[float], clients: int) -> list[int]:
    """Return the number of clients of each share by largest remainder; among equal remainders the first is rounded up.

    >>> counts([0.5, 0.3, 0.2], 9)
    [4, 3, 2]
    """
    numbers = [math.floor(share * clients) for share in shares]
    # Rounded, so that equal remainders are equal despite floating-point errors; to a power of 2, where ties are rare.
    order = sorted(range(len(shares)), key=lambda k: round((numbers[k] - shares[k] * clients) * 2**30))
    for k in order[: clients - sum(numbers)]:
        numbers[k] += 1
    return numbers


def deal(shares: Sequence[float], clients: int, seed: int, *stream: str) -> NDArray[np.integer[Any]]:
    """Return the kind of every client, as a number: exact counts of each, in an order drawn from the stream.

    A client takes a byte as long as there are at most 256 kinds.

    >>> sorted(deal([0.5, 0.5], 4, 0, "levels").tolist())
    [0, 0, 1, 1]
    """
    kinds = np.arange(len(shares), dtype=np.min_scalar_type(len(shares) - 1))
    return numpy_stream(seed, *stream).permutation(np.repeat(kinds, counts(shares, clients)))
