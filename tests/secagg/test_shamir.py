"""Secret sharing: any threshold of shares give the secret, fewer say nothing, wrong ones are noticed."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import SecAggError
from nestling.secagg.shamir import PRIME, join, split

SECRETS = st.integers(0, PRIME - 1)


@settings(max_examples=40)
@given(data=st.data(), secret=SECRETS, threshold=st.integers(1, 6), more=st.integers(0, 4))
def test_any_shares_that_are_enough_give_the_secret(data, secret, threshold, more):
    count = threshold + more
    holders = data.draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count, unique=True))
    coefficients = data.draw(st.lists(SECRETS, min_size=threshold - 1, max_size=threshold - 1))
    shares = split(secret, holders, coefficients)
    some = data.draw(st.lists(st.sampled_from(holders), min_size=threshold, unique=True))
    assert join({holder: shares[holder] for holder in some}, threshold) == secret


def test_one_share_too_few_says_nothing():
    """Over a small field, exhaustively: whatever the secret, fewer shares are equally often any numbers at all."""
    prime, threshold, holders = 7, 3, [1, 2, 4, 5]
    for some in itertools.combinations(holders, threshold - 1):
        for secret in range(prime):
            seen = Counter()
            for coefficients in itertools.product(range(prime), repeat=threshold - 1):
                shares = split(secret, holders, coefficients, prime)
                seen[tuple(shares[holder] for holder in some)] += 1
            assert len(seen) == prime ** (threshold - 1), "every pair of shares occurs"
            assert set(seen.values()) == {1}, "and each equally often"


def test_too_few_shares_are_refused():
    shares = split(5, [1, 2, 3], [4, 7])
    with pytest.raises(SecAggError, match="3 shares cannot be joined from 2"):
        join({1: shares[1], 2: shares[2]}, threshold=3)


def test_a_wrong_share_among_more_than_enough_is_noticed():
    shares = split(5, [1, 2, 3, 4], [4, 7])
    for wrong in shares:
        with pytest.raises(SecAggError, match="one of them is wrong"):
            join({**shares, wrong: shares[wrong] + 1}, threshold=3)


@pytest.mark.parametrize(("holders", "coefficients"), [([1, 1], [3]), ([0, 1], [3]), ([1, 2], [3, 4])])
def test_sharings_that_cannot_be_joined_are_refused(holders, coefficients):
    with pytest.raises(SecAggError):
        split(1, holders, coefficients)


def test_the_field_is_a_field():
    """Fermat's test with some bases; and no smaller prime holds every key of 32 bytes."""
    assert PRIME > 2**256
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 65537))
