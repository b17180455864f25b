"""The dims of a tensor as expressions over named axes, and the small grammar they are written in.

A dim is one of

- ``Fixed(3)``: a plain number that is never cut (a kernel, an image channel),
- ``Leaf("conv1", 64)``: a named axis; everything that must be cut together shares its name,
- ``Product(heads, dim)``: dims that a view joins or splits, in row-major order,
- ``Sum(q, k, v)``: dims that ``cat`` joins or ``split`` separates.

They are written ``3``, ``conv1``, ``(heads dim)``, ``(q + k + v)``; the dims of a tensor are separated by spaces, so
``"(3 heads dim) embed"`` is a matrix whose rows are three stacked projections. Parsing and printing are inverse.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nestling.errors import AxisError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\Z")
_MAX_DEPTH = 50  # of parentheses: input may be untrusted
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)|(?P<number>\d{1,12}(?![A-Za-z0-9_]))|(?P<mark>[()+]))")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A size that is never cut."""

    size: int

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One named axis."""

    name: str
    size: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Product:
    """Factors in row-major order: the index is ((i₀·n₁ + i₁)·n₂ + i₂) and so on."""

    parts: tuple[Dim, ...]

    @property
    def size(self) -> int:
        """The product of the sizes of the parts."""
        return math.prod(part.size for part in self.parts)

    def __str__(self) -> str:
        return "(" + " ".join(map(str, self.parts)) + ")"


@dataclass(frozen=True, slots=True)
class Sum:
    """Segments one after the other."""

    parts: tuple[Dim, ...]

    @property
    def size(self) -> int:
        """The sum of the sizes of the parts."""
        return sum(part.size for part in self.parts)

    def __str__(self) -> str:
        return "(" + " + ".join(map(str, self.parts)) + ")"


Dim = Fixed | Leaf | Product | Sum


class Dims(tuple[Dim, ...]):
    """The dims of one tensor, printable in the grammar of this module.

    >>> Dims([Product((Fixed(3), Leaf("heads", 4), Leaf("dim", 8))), Leaf("embed", 32)])
    (3 heads dim) embed
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, one per dim."""
        return tuple(dim.size for dim in self)

    def __str__(self) -> str:
        return " ".join(map(str, self))

    __repr__ = __str__


def leaves(dim: Dim) -> Iterator[Leaf]:
    """Yield every leaf of `dim`, left to right.

    >>> [leaf.name for leaf in leaves(Sum((Leaf("q", 8), Product((Leaf("k", 4), Fixed(2))))))]
    ['q', 'k']
    """
    if isinstance(dim, Leaf):
        yield dim
    elif isinstance(dim, Product | Sum):
        for part in dim.parts:
            yield from leaves(part)


def factors(dim: Dim) -> Iterator[Dim]:
    """Yield the factors of `dim`, left to right, with nested products flattened.

    >>> [str(part) for part in factors(Product((Fixed(3), Product((Leaf("h", 4), Leaf("d", 8))))))]
    ['3', 'h', 'd']
    """
    if isinstance(dim, Product):
        for part in dim.parts:
            yield from factors(part)
    else:
        yield dim


def resized(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return `dim` with the axes named in `sizes` resized.

    >>> resized(Product((Leaf("heads", 4), Leaf("dim", 8))), {"dim": 2}).size
    8
    """
    if isinstance(dim, Leaf):
        return Leaf(dim.name, sizes.get(dim.name, dim.size))
    if isinstance(dim, Product | Sum):
        return type(dim)(tuple(resized(part, sizes) for part in dim.parts))
    return dim


def smaller(dims: Dims, sizes: Mapping[str, int]) -> Dims:
    """Return `dims` with the axes named in `sizes` resized.

    >>> smaller(Dims([Leaf("out", 8), Fixed(3)]), {"out": 2}).shape
    (2, 3)
    """
    return Dims(resized(dim, sizes) for dim in dims)


def parse(text: str, sizes: Mapping[str, int]) -> Dims:
    """Parse dims in the grammar of this module; `sizes` gives the size of every known name.

    >>> parse("(3 heads dim) embed", {"heads": 4, "dim": 8, "embed": 32}).shape
    (96, 32)
    """
    tokens = _tokens(text)
    deepest = max(itertools.accumulate({"(": 1, ")": -1}.get(token, 0) for token in tokens), default=0)
    if deepest > _MAX_DEPTH:
        raise AxisError(f"the pattern {text[:40]!r}… nests parentheses more than {_MAX_DEPTH} deep")
    dims, rest = _sequence(tokens, text, sizes)
    if rest:
        fault = "closes a parenthesis that was never opened" if rest[0] == ")" else "has a sum outside of parentheses"
        raise AxisError(f"the pattern {text!r} {fault}")
    return Dims(dims)


def names_in(text: str) -> list[str]:
    """Return the axis names that the pattern `text` uses, in order, each once.

    >>> names_in("(3 heads dim) heads")
    ['heads', 'dim']
    """
    return list(dict.fromkeys(token for token in _tokens(text) if NAME.match(token)))


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise AxisError(
                f"the pattern {text!r} is not readable at {text[at:].strip()!r}: "
                "use names, numbers, '(a b)' for a product and '(a + b)' for a sum"
            )
        tokens.append(match.group().strip())
        at = match.end()
    return tokens


def _sequence(tokens: list[str], text: str, sizes: Mapping[str, int]) -> tuple[list[Dim], list[str]]:
    """Parse dims until the tokens end or a parenthesis closes; return them and the remaining tokens."""
    dims: list[Dim] = []
    while tokens and tokens[0] not in (")", "+"):
        token, tokens = tokens[0], tokens[1:]
        if token == "(":
            dim, tokens = _group(tokens, text, sizes)
            dims.append(dim)
        elif token.isdigit():
            dims.append(Fixed(int(token)))
        elif token in sizes:
            dims.append(Leaf(token, sizes[token]))
        else:
            raise AxisError(f"the pattern {text!r} names the axis {token!r}, whose size is not known")
    return dims, tokens


def _group(tokens: list[str], text: str, sizes: Mapping[str, int]) -> tuple[Dim, list[str]]:
    """Parse the content of parentheses: factors side by side, or segments joined by '+'."""
    segments: list[Dim] = []
    while True:
        parts, tokens = _sequence(tokens, text, sizes)
        if not parts or not tokens:
            raise AxisError(f"the pattern {text!r} has an empty or unclosed parenthesis")
        segments.append(parts[0] if len(parts) == 1 else Product(tuple(parts)))
        mark, tokens = tokens[0], tokens[1:]
        if mark == ")":
            return (segments[0] if len(segments) == 1 else Sum(tuple(segments))), tokens
