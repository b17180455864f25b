"""Who takes part and at which level: exact where it is dealt, even where it is drawn, the same whoever asks."""

import copy
import math
import pickle
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nestling.fleet import ASSIGNMENTS, FEDROLEX_REAL_WORLD, LEVELS, NEFL_FIVE, Fleet, parse_mix
from nestling.fleet.apportion import counts, deal
from nestling.seeds import numpy_stream
from tests.fleet.fleet_refuse import refused

ALL = "a-b-c-d-e"
SHARES = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


def levels(fleet, round=0):
    return [fleet.level(client, round).name for client in range(fleet.clients)]


def unlikely(observed, expected):
    """Whether counts lie further from what is expected than chance would put them once in a million."""
    chi = sum((observed[kind] - count) ** 2 / count for kind, count in expected.items())
    freedom = len(expected) - 1
    return chi > freedom + 6 * math.sqrt(2 * freedom) + 12 or set(observed) - set(expected)


# ---- dealt


@settings(max_examples=300)
@given(SHARES, st.integers(1, 500))
@example([4, 1, 1], 2)  # remainders that are equal, but not as floating-point numbers
@example([1, 1, 4], 10)
@example([1, 7, 1], 3)
@example([29, 71], 100)  # 0.29 · 100 < 29
def test_largest_remainder(weights, clients):
    numbers = counts([weight / sum(weights) for weight in weights], clients)
    assert sum(numbers) == clients
    below = [weight * clients // sum(weights) for weight in weights]
    remainders = [weight * clients % sum(weights) for weight in weights]
    order = sorted(range(len(weights)), key=lambda k: (-remainders[k], k))
    up = set(order[: clients - sum(below)])
    assert numbers == [count + (k in up) for k, count in enumerate(below)]


@given(st.integers(1, 300), SHARES, st.integers(0, 9))
def test_fixed_is_exact_and_for_good(clients, weights, seed):
    mix = parse_mix(dict(zip(LEVELS, weights, strict=False)))
    fleet = Fleet(clients, 1, mix, "fixed", seed)
    exact = counts([share for _, share in mix], clients)
    assert Counter(levels(fleet)) == +Counter({level.name: n for (level, _), n in zip(mix, exact, strict=True)})
    assert levels(fleet) == levels(fleet, round=7)


def test_the_papers_mixes_are_exact():
    assert Counter(levels(Fleet(100, 10, FEDROLEX_REAL_WORLD))) == {"a": 6, "b": 10, "c": 11, "d": 18, "e": 55}
    assert Counter(levels(Fleet(100, 10, parse_mix("a1-e9")))) == {"a": 10, "e": 90}
    assert Counter(levels(Fleet(10, 10, parse_mix("0.5:3,0.75:3,1:4")))) == {"0.5": 3, "0.75": 3, "1": 4}


def test_fixed_levels_are_in_a_random_order():
    dealt = [levels(Fleet(100, 1, parse_mix("a-b"), seed=seed)) for seed in range(200)]
    assert len(set(map(tuple, dealt))) == 200
    for client in (0, 50, 99):
        assert 65 < sum(one[client] == "a" for one in dealt) < 135


# ---- drawn


def test_dynamic_frequencies_over_clients_and_over_rounds():
    fleet = Fleet(2000, 1, FEDROLEX_REAL_WORLD, "dynamic", seed=3)
    expected = {level.name: 2000 * share for level, share in FEDROLEX_REAL_WORLD}
    assert not unlikely(Counter(levels(fleet)), expected)
    assert not unlikely(Counter(fleet.level(17, round).name for round in range(2000)), expected)
    assert levels(fleet, 0) != levels(fleet, 1)


def test_tiers_choose_evenly_within_two_levels_of_their_own():
    fleet = Fleet(50, 1, parse_mix(NEFL_FIVE), "tiers", seed=1)
    tiers = Counter()
    for client in range(50):
        chosen = Counter(fleet.level(client, round).name for round in range(200))
        tiers[tuple(sorted(chosen))] += 1
        assert not unlikely(chosen, dict.fromkeys(chosen, 200 / len(chosen)))
    # NeFL, B.5, word for word
    assert tiers == {
        ("0.2", "0.4", "0.6"): 10,
        ("0.2", "0.4", "0.6", "0.8"): 10,
        ("0.2", "0.4", "0.6", "0.8", "1"): 10,
        ("0.4", "0.6", "0.8", "1"): 10,
        ("0.6", "0.8", "1"): 10,
    }


@given(st.permutations(range(1, 10)), st.integers(0, 50))
def test_tiers_go_by_ratio_whatever_the_order_of_the_mix(order, seed):
    tiers = Fleet(18, 1, parse_mix([place / 10 for place in order]), "tiers", seed)
    fixed = replace(tiers, assign="fixed")
    for client in range(18):
        home = fixed.level(client, 0).ratio
        assert all(abs(tiers.level(client, round).ratio - home) < 0.21 for round in range(5))


# ---- sampling


@given(st.integers(1, 300), st.data(), st.integers(0, 1000))
def test_samples_are_different_clients_in_order(clients, data, round):
    per_round = data.draw(st.integers(1, clients))
    chosen = Fleet(clients, per_round, parse_mix("a")).sample(round)
    assert len(chosen) == per_round
    assert list(chosen) == sorted(set(chosen))
    assert chosen[0] >= 0
    assert chosen[-1] < clients
    assert all(type(client) is int for client in chosen)


def test_sampling_is_even():
    fleet = Fleet(20, 5, parse_mix("a"), seed=2)
    rounds = [fleet.sample(round) for round in range(2000)]
    assert not unlikely(Counter(client for chosen in rounds for client in chosen), dict.fromkeys(range(20), 500))
    together = Counter(pair for chosen in rounds for pair in combinations(chosen, 2))
    assert not unlikely(together, dict.fromkeys(combinations(range(20), 2), 2000 * 10 / 190))


def test_hundreds_of_thousands_of_clients():
    fleet = Fleet(342_477, 200, parse_mix(ALL))
    seen = {client for round in range(50) for client in fleet.sample(round)}
    assert len(seen) > 9_800
    assert max(seen) > 340_000
    dealt = Counter(fleet.level(client, 0).name for client in seen)
    assert not unlikely(dealt, dict.fromkeys(LEVELS, len(seen) / 5))
    assert Counter(fleet._level_numbers.tolist()) == {0: 68_496, 1: 68_496, 2: 68_495, 3: 68_495, 4: 68_495}


# ---- the same whoever asks


@pytest.mark.parametrize("assign", ASSIGNMENTS)
def test_answers_depend_on_seed_round_and_client_alone(assign):
    fleet = Fleet(40, 7, parse_mix(ALL), assign, seed=5)
    first_levels = {(client, round): fleet.level(client, round) for round in range(3) for client in range(40)}
    samples = [fleet.sample(round) for round in range(9)]
    other = Fleet(40, 7, parse_mix(ALL), assign, seed=5)
    assert [other.sample(round) for round in reversed(range(9))] == samples[::-1]
    assert {(c, r): other.level(c, r) for c, r in reversed(first_levels)} == first_levels
    for again in (copy.deepcopy(fleet), pickle.loads(pickle.dumps(fleet))):
        assert again == fleet
        assert hash(again) == hash(fleet)
        assert {key: again.level(*key) for key in first_levels} == first_levels
    # how many take part changes nobody's level, and NumPy's integers are integers
    assert {(c, r): replace(fleet, per_round=40).level(c, r) for c, r in first_levels} == first_levels
    assert {(c, r): fleet.level(np.int32(c), np.int64(r)) for c, r in first_levels} == first_levels
    assert fleet.sample(np.int64(3)) == samples[3]
    assert len(set(samples)) == 9
    moved = replace(fleet, seed=6)
    assert {(c, r): moved.level(c, r) for c, r in first_levels} != first_levels
    assert [moved.sample(round) for round in range(9)] != samples


def test_a_mix_may_be_given_as_text():
    assert Fleet(4, 2, "a1-e3") == Fleet(4, 2, parse_mix("a1-e3"))


# ---- refused


@pytest.mark.parametrize("bad", [0, -1, 2.0, "3", True, None])
def test_numbers_that_cannot_be(bad):
    mix = parse_mix("a")
    refused(lambda: Fleet(bad, 1, mix), "the number of clients must be a whole number of at least 1", repr(bad))
    refused(lambda: Fleet(9, bad, mix), "the number of clients per round", "from 1 to 9", repr(bad))


def test_refusals():
    fleet = Fleet(9, 3, parse_mix("a"))
    refused(lambda: replace(fleet, per_round=10), "per round", "from 1 to 9", "not 10")
    refused(lambda: replace(fleet, assign="dynamc"), "there is no assignment 'dynamc'", "'dynamic'")
    refused(lambda: replace(fleet, assign="x"), "'fixed', 'dynamic', 'tiers'")
    refused(lambda: replace(fleet, seed=1.5), "the seed", "1.5")
    refused(lambda: replace(fleet, mix="a-a"), "the same ratio")
    for bad in (-1, 9, 1.0, None):
        refused(lambda bad=bad: fleet.level(bad, 0), "the client", "from 0 to 8", repr(bad))
    refused(lambda: fleet.level(0, -1), "the round", "at least 0")
    refused(lambda: fleet.sample(-1), "the round", "at least 0")
    refused(lambda: fleet.sample(0.5), "the round", "0.5")


@given(kinds=st.integers(1, 300), clients=st.integers(1, 2000), seed=st.integers(0, 9))
def test_a_byte_per_client_changes_nobody(kinds, clients, seed):
    """Populations of millions take a byte per client, and are those that were drawn as whole numbers of 64 bits."""
    shares = [1 / kinds] * kinds
    dealt = deal(shares, clients, seed, "levels")
    order = numpy_stream(seed, "levels").permutation(np.repeat(np.arange(kinds), counts(shares, clients)))
    assert np.array_equal(dealt, order)
    assert dealt.itemsize == (1 if kinds <= 256 else 2)


# ---- sampling


def test_poisson_rounds_have_clients_by_chance_each_alike():
    fleet = Fleet(50, 10, parse_mix("a"), sampling="poisson")
    rounds = [fleet.sample(round) for round in range(400)]
    sizes = [len(drawn) for drawn in rounds]
    assert abs(np.mean(sizes) - 10) < 4 * math.sqrt(8 / 400)
    assert abs(np.var(sizes) - 8) < 2.5  # of a binomial with 50 · 0.2 · 0.8
    assert not unlikely(Counter(client for drawn in rounds for client in drawn), dict.fromkeys(range(50), 80.0))
    assert all(list(drawn) == sorted(set(drawn)) for drawn in rounds)
    refused(lambda: Fleet(5, 1, parse_mix("a"), sampling="poison"), "'poisson'")


@pytest.mark.parametrize("assign", ASSIGNMENTS)
def test_the_expected_levels_of_a_round(assign):
    fleet = Fleet(60, 12, parse_mix("a1-b2-c3-d3-e3"), assign)
    expected = fleet.expected_levels()
    assert sum(expected.values()) == pytest.approx(12)
    drawn = Counter(fleet.level(client, round) for round in range(300) for client in fleet.sample(round))
    assert not unlikely(drawn, {level: count * 300 for level, count in expected.items()})
