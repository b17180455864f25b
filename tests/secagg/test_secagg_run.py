"""The protocol: exact sums whoever drops out when, masks that look random, and nothing wrong that is not refused."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from nestling.errors import SecAggError
from nestling.secagg.key_agreement import agreed_key, derived
from nestling.secagg.mask_stream import mask, residue_type
from nestling.secagg.secagg_client import SecAggClient
from nestling.secagg.secagg_run import STEPS, secure_sum
from nestling.secagg.secagg_server import SecAggServer

LENGTH = 5


def entropy_of(number, seed=0):
    return hashlib.sha256(f"{seed} {number}".encode()).digest()


def vector_of(number, bits=32, length=LENGTH):
    random = np.random.default_rng(number)
    return random.integers(0, 2**bits, length, dtype=np.uint64).astype(residue_type(bits))


def run_of(clients, threshold, drops=None, bits=32):
    vectors = {k: (lambda k=k: vector_of(k, bits)) for k in range(1, clients + 1)}
    entropy = {k: entropy_of(k) for k in vectors}
    return secure_sum(vectors, entropy, threshold=threshold, length=LENGTH, bits=bits, drops=drops)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), clients=st.integers(3, 6), bits=st.sampled_from([16, 32, 64]))
def test_the_sum_is_that_of_all_whose_vectors_arrived(data, clients, bits):
    threshold = data.draw(st.integers(2, clients))
    numbers = st.integers(1, clients)
    drops = data.draw(st.dictionaries(numbers, st.sampled_from(STEPS), max_size=clients))
    result = run_of(clients, threshold, drops, bits)
    left = {}
    for place, step in enumerate(STEPS):
        left[step] = [k for k in range(1, clients + 1) if drops.get(k) not in STEPS[: place + 1]]
    if len(left["reveal"]) < threshold:  # at the last step the fewest are left
        assert result.total is None
        assert "must" in result.problem
        return
    assert result.clients == tuple(left["vector"])
    wanted = sum((vector_of(k, bits) for k in left["vector"]), np.zeros(LENGTH, residue_type(bits)))
    assert np.array_equal(result.total, wanted)


@pytest.mark.parametrize("step", STEPS)
def test_dropouts_at_every_step_are_survived_until_too_few_are_left(step):
    assert run_of(5, 3, {2: step, 5: step}).total is not None
    result = run_of(5, 3, {1: step, 2: step, 5: step})
    assert result.total is None
    assert result.problem.startswith("2 clients")
    assert result.problem.endswith("and 3 must")


def conversation(clients=4, threshold=3, gone=()):
    """All messages up to the last step; clients in `gone` send no vector."""
    cohort = {k: SecAggClient(k, entropy_of(k), threshold) for k in range(1, clients + 1)}
    server = SecAggServer(threshold, LENGTH, 32)
    roster = server.roster([client.keys() for client in cohort.values()])
    inboxes = server.inboxes([client.shares(roster) for client in cohort.values()])
    masked = {k: client.masked(vector_of(k), inboxes[k]) for k, client in cohort.items() if k not in gone}
    for one in masked.values():
        server.add(one)
    revealed = [cohort[k].revealed(server.arrived) for k in masked]
    return server, masked, revealed, cohort


def is_uniform(residues):
    """Whether every byte of the residues passes a χ² test."""
    by_place = residues.view(np.uint8).reshape(-1, residues.itemsize).T
    return all(1e-3 < chisquare(np.bincount(values, minlength=256)).pvalue < 1 - 1e-3 for values in by_place)


def test_residues_of_one_masked_vector_are_uniform_also_without_half_of_its_masks():
    """Vectors of zeros, so that what is not uniform would be seen.

    The server may learn the seed of a client's own mask, or the key of its common masks: with either alone, the rest is
    still uniform. So a vector that comes after its client was given up for lost tells nothing.
    """
    zeros = np.zeros(20_000, np.uint32)
    cohort = {k: SecAggClient(k, entropy_of(k), 3) for k in (1, 2, 3)}
    server = SecAggServer(3, len(zeros), 32)
    roster = server.roster([client.keys() for client in cohort.values()])
    inboxes = server.inboxes([client.shares(roster) for client in cohort.values()])
    masked = {k: client.masked(zeros, inboxes[k]).residues for k, client in cohort.items()}
    assert all(map(is_uniform, masked.values()))
    assert np.abs(np.corrcoef(np.stack(list(masked.values())).astype(float)) - np.eye(3)).max() < 0.03
    own = mask(derived(entropy_of(2), "seed"), len(zeros), 32)
    key = derived(entropy_of(2), "mask")
    common = [mask(agreed_key(key, roster[k].mask, "mask"), len(zeros), 32) for k in (1, 3)]
    assert is_uniform(masked[2] - own)
    assert is_uniform(masked[2] + common[0] - common[1])
    assert not (masked[2] - own + common[0] - common[1]).any()
    assert not is_uniform(zeros)


def test_a_client_that_took_part_twice_is_masked_anew():
    one, other = (SecAggClient(1, entropy_of(1, seed), 3) for seed in (0, 1))
    assert one.keys() != other.keys()


def test_nobody_reveals_both_secrets_of_a_client():
    _, _, revealed, cohort = conversation(gone=(4,))
    for answer in revealed:
        assert answer.seeds.keys() == {1, 2, 3}
        assert answer.keys.keys() == {4}
    with pytest.raises(SecAggError, match="taken once, and in order"):
        cohort[1].revealed({1, 2, 3, 4})


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_wrong_shares_give_no_sum(kind):
    server, _, revealed, _ = conversation(gone=(4,))
    shares = getattr(revealed[0], kind)
    wrong = {k: share + 1 for k, share in shares.items()}
    with pytest.raises(SecAggError, match="one of them is wrong"):
        server.unmasked([replace(revealed[0], **{kind: wrong}), *revealed[1:]])
    with pytest.raises(SecAggError, match="cannot be joined from 2"):
        server.unmasked([replace(revealed[0], **{kind: {}}), *revealed[1:]])
    assert server.unmasked(revealed).tolist() == sum(vector_of(k) for k in (1, 2, 3)).tolist()


def test_answers_that_are_too_few_or_not_asked_for_give_no_sum():
    server, _, revealed, _ = conversation()
    with pytest.raises(SecAggError, match="2 clients revealed their shares, and 3 must"):
        server.unmasked(revealed[:2])
    with pytest.raises(SecAggError, match="2 clients revealed their shares, and 3 must"):
        server.unmasked([*revealed[:2], replace(revealed[2], client=9)])


def test_vectors_that_do_not_belong_are_refused():
    server, masked, _, _ = conversation(gone=(4,))
    with pytest.raises(SecAggError, match="came twice"):
        server.add(masked[1])
    with pytest.raises(SecAggError, match="before its shares"):
        server.add(replace(masked[1], client=7))
    with pytest.raises(SecAggError, match="another length"):
        server.add(replace(masked[1], client=4, residues=masked[1].residues[:-1]))


def test_a_client_refuses_what_would_give_it_away():
    cohort = {k: SecAggClient(k, entropy_of(k), 3) for k in (1, 2, 3)}
    roster = {k: client.keys() for k, client in cohort.items()}
    with pytest.raises(SecAggError, match="in order"):
        cohort[1].masked(vector_of(1), {})
    rosters = {
        "2 clients are left, and this client goes on with 3": {1: roster[1], 2: roster[2]},
        "two are the same": {**roster, 3: replace(roster[2], client=3)},
        "lack the client's own": {**roster, 1: SecAggClient(1, entropy_of(1, 5), 3).keys()},
    }
    for words, wrong in rosters.items():
        fresh = SecAggClient(1, entropy_of(1), 3)
        fresh.keys()
        with pytest.raises(SecAggError, match=words):
            fresh.shares(wrong)
    inboxes = {k: {} for k in roster}
    for k, client in cohort.items():
        for to, text in client.shares(roster).sealed.items():
            inboxes[to][k] = text
    with pytest.raises(SecAggError, match="not of the cohort"):
        cohort[1].masked(vector_of(1), {**inboxes[1], 9: b""})
    cohort[2].masked(vector_of(2), inboxes[2])
    with pytest.raises(SecAggError, match="2 clients are left"):
        cohort[2].revealed({1, 2})
    swapped = {1: inboxes[3][2], 2: inboxes[3][1]}
    cohort[3].masked(vector_of(3), swapped)
    with pytest.raises(SecAggError, match="not from the client that it names"):
        cohort[3].revealed({1, 2, 3})


def test_public_keys_of_small_order_are_refused():
    client = SecAggClient(1, entropy_of(1), 2)
    roster = {1: client.keys(), 2: replace(SecAggClient(2, entropy_of(2), 2).keys(), channel=bytes(32))}
    with pytest.raises(SecAggError, match="not one of X25519"):
        client.shares(roster)


def test_bytes_are_those_of_the_messages():
    """Four clients, one of which drops out before it sends its vector: the sizes of Bonawitz et al.'s messages."""
    result = run_of(4, 3, {4: "vector"})
    number, key, share, sealed = 4, 32, 33, 2 * 33 + 16
    keys, shares = number + 2 * key, number + 32 + 3 * (number + sealed)
    vector, reveal = number + 4 * LENGTH, number + 4 * (number + share)
    assert result.bytes_up == 4 * keys + 4 * shares + 3 * vector + 3 * reveal
    assert result.bytes_down == 4 * 4 * keys + 4 * 3 * (number + sealed) + 3 * 3 * number
