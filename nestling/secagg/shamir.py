"""Shamir's secret sharing: any `threshold` shares give the secret, and fewer say nothing about it.

Shamir, How to Share a Secret, Communications of the ACM 22(11), 1979: the secret is the value at 0 of a random
polynomial over a prime field, a share its value at the number of its holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nestling.errors import SecAggError

PRIME = 2**256 + 297  # the smallest prime above 2^256: secrets are keys of 32 bytes
SHARE_BYTES = 33


def split(secret: int, holders: Iterable[int], coefficients: Sequence[int], prime: int = PRIME) -> dict[int, int]:
    """Return the share of every holder.

    Parameters
    ----------
    secret
        A number from 0 to ``prime`` − 1.
    holders
        The numbers of the holders, all different, from 1.
    coefficients
        Uniformly random numbers from 0 to ``prime`` − 1, one fewer than the shares that give the secret.
    prime
        The size of the field.

    Examples
    --------
    >>> split(5, [1, 2, 3], [4], prime=11)
    {1: 9, 2: 2, 3: 6}
    """
    numbers = list(holders)
    if len(set(numbers)) < len(numbers) or not all(0 < number < prime for number in numbers):
        raise SecAggError(f"shares need holders with different numbers from 1 to {prime - 1}, not {numbers[:10]}")
    if not 0 <= secret < prime:
        raise SecAggError("a secret that is shared must be a number of the field")
    if len(coefficients) >= len(numbers):
        raise SecAggError(f"{len(numbers)} holders cannot have {len(coefficients) + 1} shares to join")
    return {number: _value([secret, *coefficients], number, prime) for number in numbers}


def join(shares: Mapping[int, int], threshold: int, prime: int = PRIME) -> int:
    """Return the secret of some shares; raise unless they are enough, and all of one polynomial.

    Parameters
    ----------
    shares
        Number of the holder → share.
    threshold
        How many shares give the secret. Wrong ones are noticed if there are more.
    prime
        The size of the field.

    Examples
    --------
    >>> join({1: 9, 3: 6}, threshold=2, prime=11)
    5
    """
    if len(shares) < threshold:
        raise SecAggError(f"a secret of {threshold} shares cannot be joined from {len(shares)}")
    numbers = sorted(shares)
    known, others = numbers[:threshold], numbers[threshold:]
    for other in others:
        if _interpolated({number: shares[number] for number in known}, other, prime) != shares[other] % prime:
            raise SecAggError("the shares of a secret do not fit each other: one of them is wrong")
    return _interpolated({number: shares[number] for number in known}, 0, prime)


def _value(coefficients: Sequence[int], at: int, prime: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * at + coefficient) % prime
    return total


def _interpolated(shares: Mapping[int, int], at: int, prime: int) -> int:
    """Return the value at a number of the polynomial through some shares (Lagrange)."""
    total = 0
    for number, share in shares.items():
        above = below = 1
        for other in shares:
            if other != number:
                above = above * (at - other) % prime
                below = below * (number - other) % prime
        total += share * above * pow(below, -1, prime)
    return total % prime
