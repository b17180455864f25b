"""The noised sum: how much one client can move it, what it is without noise, and how much noise there is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling import extract, plan
from nestling.fleet import Fleet, Participation, parse_mix
from nestling.methods.privacy.noised_sum import NoisedSum
from tests.cut.cut_cases import LAWS, SEEDS
from tests.methods.robust.robust_cases import FLEETS, dense, example_of, round_of, update_of, updates_of

NAMES = st.sampled_from(["cnn", "tied", "fused-view"])


def noised(given_, updates, clip, noise=0.0, real=True, fleet=None, number=1):
    participation = None if fleet is None else Participation.of(fleet)
    round = round_of(given_.it, state=given_.state, participation=participation)
    object.__setattr__(round, "number", number)
    merge = NoisedSum(round, clip, noise, real_counts=real, record={})
    for update in updates:
        merge.add(update, 7.0)
    return merge


def sums(merge, given_):
    """The sum of clipped changes, as a vector of all parameters: the change of the model times its denominators."""
    value = merge.value()
    names = [name for name in value if name not in given_.axes.tied]
    return torch.cat(
        [
            ((value[name] - given_.state[name]) * merge.gathered(name)).flatten()
            for name in names
            if given_.state[name].is_floating_point()
        ]
    )


@LAWS
@given(name=NAMES, drawn=FLEETS, clip=st.sampled_from([1e-3, 0.5, 100.0]), seed=SEEDS)
def test_one_client_moves_the_sum_by_at_most_the_clip_and_a_replaced_one_by_twice_that(name, drawn, clip, seed):
    given_ = example_of(name, torch.float64)
    updates = updates_of(given_.it, given_.state, drawn)
    other = update_of(given_.axes, given_.state, updates[-1].plan, seed, client=99)
    whole = noised(given_, updates, clip)
    without, replaced = noised(given_, updates[:-1], clip), noised(given_, [*updates[:-1], other], clip)
    one, two, three = (sums(merge, given_) for merge in (whole, without, replaced))
    assert torch.linalg.vector_norm(one - two) <= clip * (1 + 1e-6)
    assert torch.linalg.vector_norm(one - three) <= 2 * clip * (1 + 1e-6)
    if clip == 1e-3:  # everybody is clipped: the bound is reached
        assert torch.linalg.vector_norm(one - two) == pytest.approx(clip, rel=1e-4)
    for key in given_.state:  # a client of the same slice: the denominators, which are public, do not change
        assert torch.equal(whole.gathered(key), replaced.gathered(key))


@LAWS
@given(name=NAMES, seed=SEEDS, drawn=st.lists(st.booleans(), max_size=6), clip=st.sampled_from([0.1, 3.0]))
def test_fixed_denominators_do_not_depend_on_who_takes_part(name, seed, drawn, clip):
    given_ = example_of(name, torch.float64)
    fleet = Fleet(40, 10, parse_mix("a1-c3"), sampling="poisson")
    plans = [plan(given_.axes, 1.0 if wide else 0.25) for wide in drawn]
    updates = [update_of(given_.axes, given_.state, one, seed + k, client=k) for k, one in enumerate(plans)]
    merge = noised(given_, updates, clip, real=False, fleet=fleet)
    small = extract(given_.axes, plan(given_.axes, 0.25), {n: torch.ones_like(t) for n, t in given_.state.items()})
    for key in small:
        counts = merge.gathered(key)
        if key in merge.value() and counts.sum():
            assert set(counts.unique().tolist()) <= {2.5, 10.0}
            assert int((counts == 10.0).sum()) == small[key].numel()
    total = sums(merge, given_)
    if updates:  # one client less, and another one, of whatever level: the sum moves by the clip, and by twice that
        other = update_of(given_.axes, given_.state, plan(given_.axes, 0.25 if drawn[-1] else 1.0), seed + 99)
        less = sums(noised(given_, updates[:-1], clip, real=False, fleet=fleet), given_)
        replaced = sums(noised(given_, [*updates[:-1], other], clip, real=False, fleet=fleet), given_)
        assert torch.linalg.vector_norm(total - less) <= clip * (1 + 1e-6)
        assert torch.linalg.vector_norm(total - replaced) <= 2 * clip * (1 + 1e-6)
    changes = torch.zeros_like(total)
    for update in updates:
        start, change = 0, torch.zeros_like(total)
        for key, old in given_.state.items():
            if key in given_.axes.tied or not old.is_floating_point():
                continue
            moved = torch.from_numpy(dense(given_.axes, key, [update])[0]) - old
            if key in dict(given_.it.model.named_parameters(remove_duplicate=False)):
                change[start : start + old.numel()] = moved.nan_to_num(0.0).flatten()
            start += old.numel()
        changes += change * min(1.0, clip / float(change.norm()))
    torch.testing.assert_close(total, changes, rtol=1e-6, atol=1e-9)


def test_the_noise_has_the_deviation_that_the_accountant_is_told():
    """On the sum, before it is divided: whatever the denominators are."""
    given_ = example_of("mlp", torch.float64)
    fleet = Fleet(40, 10, parse_mix("a1-c3"), sampling="poisson")
    draws = torch.cat([sums(noised(given_, [], 2.0, 1.5, False, fleet, number), given_) for number in range(1, 41)])
    assert len(draws) > 10_000
    assert draws.std().item() == pytest.approx(3.0, rel=4 / math.sqrt(2 * len(draws)))
    assert abs(draws.mean().item()) < 4 * 3.0 / math.sqrt(len(draws))
    again = sums(noised(given_, [], 2.0, 1.5, False, fleet, 1), given_)
    assert torch.equal(again, draws[: len(again)])


def test_buffers_keep_their_values():
    given_ = example_of("cnn", torch.float64)
    updates = updates_of(given_.it, given_.state, [(k, "full") for k in range(4)])
    value = noised(given_, updates, 1.0, 1.0).value()
    parameters = {name for name, _ in given_.it.model.named_parameters()}
    for name, tensor in given_.state.items():
        assert torch.equal(value[name], tensor) != (name in parameters), name
