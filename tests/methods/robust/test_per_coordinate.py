"""Median and trimmed mean against NumPy, coordinate by coordinate, on random slices of random nets."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling import Plan, extract
from nestling.errors import MethodError, StateError
from nestling.events import collect
from nestling.methods.parts.per_submodel import PerSubmodel
from nestling.methods.robust import per_coordinate
from nestling.methods.robust.median import Median
from nestling.methods.robust.per_coordinate import CoordinateRule
from nestling.methods.robust.trimmed_mean import TrimmedMean
from tests.cut.cut_cases import LAWS, NETS, SEEDS, copied, same
from tests.methods.robust.robust_cases import (
    FLEETS,
    example_of,
    holders,
    lower_median,
    reference,
    round_of,
    update_of,
    updates_of,
)
from tests.quick import mostly_slow

every_net = pytest.mark.parametrize("name", mostly_slow(NETS, quick=3))
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def trimmed(share):
    def mean(values):
        k = min(math.ceil(round(share * len(values), 9)), (len(values) - 1) // 2)
        return np.sort(values)[k : len(values) - k].mean()

    return mean


RULES = [(Median(), np.median), (TrimmedMean(0.2), trimmed(0.2)), (TrimmedMean(0.49), trimmed(0.49))]


def merged(round, updates):
    kept = round.setup.method.aggregator(round, None)
    for update in updates:
        kept.add(update, 3.0)
    return kept


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES, rule=st.sampled_from(RULES), rows=st.booleans())
def test_every_coordinate_is_what_numpy_makes_of_its_holders(name, drawn, dtype, rule, rows):
    given_ = example_of(name, dtype)
    updates = updates_of(given_.it, given_.state, drawn, rows)
    before, sent = copied(given_.state), [copied(update.state) for update in updates]
    round = round_of(given_.it, rule[0], state=given_.state)
    kept = merged(round, updates)
    value = kept.value()
    wanted, few = reference(given_.axes, given_.state, updates, rule[1], lower_median)
    assert list(value) == list(given_.axes.dims)
    for key, tensor in value.items():
        torch.testing.assert_close(tensor, wanted[key], rtol=None, atol=None)
        count = holders(given_.axes, key, updates)
        assert torch.equal(kept.gathered(key), torch.where(count >= 3, count, 0).double())
        assert torch.equal(tensor[count < 3], given_.state[key][count < 3])
    assert kept.recorded() == {"too_few_holders": few}
    assert kept.clients == len(updates)
    assert same(before, given_.state) is None
    assert all(same(old, update.state) is None for old, update in zip(sent, updates, strict=True))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3)])
@pytest.mark.parametrize("name", ["cnn", "tied", "fused-view"])
@LAWS
@given(drawn=FLEETS, dtype=DTYPES)
def test_nothing_trained_nothing_changed(name, rule, drawn, dtype):
    given_ = example_of(name, dtype)
    round = round_of(given_.it, rule, state=given_.state)
    updates = updates_of(given_.it, given_.state, drawn)
    for update in updates:
        update.state.update(extract(given_.axes, update.plan, given_.state))
    assert same(merged(round, updates).value(), given_.state) is None


@LAWS
@given(seed=SEEDS, drawn=FLEETS, at_once=st.sampled_from([1, 7, 100]))
def test_the_size_of_parts_changes_no_bit(seed, drawn, at_once):
    given_ = example_of("cnn")
    updates = updates_of(given_.it, given_.state, [(seed, "full"), (seed + 1, "prefix"), *drawn])
    round = round_of(given_.it, Median(), state=given_.state)
    whole = merged(round, updates).value()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(per_coordinate, "_AT_ONCE", at_once)
        assert same(merged(round, updates).value(), whole) is None


def test_a_minority_moves_no_coordinate_beyond_the_others():
    """Two of five holders send anything: the result stays among the values of the other three."""
    given_ = example_of("cnn")
    plan = Plan({name: range(size // 2) for name, size in given_.axes.axes.items()})
    updates = [update_of(given_.axes, given_.state, plan, seed, client=seed) for seed in range(5)]
    for update in updates[:2]:
        update.state.update({key: torch.full_like(tensor, 1e6) for key, tensor in update.state.items()})
    for rule in (Median(), TrimmedMean(0.4)):
        value = extract(given_.axes, plan, merged(round_of(given_.it, rule, state=given_.state), updates).value())
        for key, tensor in value.items():
            honest = torch.stack([update.state[key] for update in updates[2:]])
            assert bool((honest.amin(0) <= tensor).all() and (tensor <= honest.amax(0)).all()), key


def test_tensors_of_sub_models_are_merged_among_their_clients():
    given_ = example_of("cnn")
    round = round_of(given_.it, PerSubmodel(("norms",)), Median(), state=given_.state)
    plans = {
        key: Plan({n: range(size // k) for n, size in given_.axes.axes.items()}, key=key)
        for key, k in (("wide", 1), ("half", 2))
    }
    updates = [update_of(given_.axes, given_.state, plans["wide"], seed) for seed in range(4)]
    updates += [update_of(given_.axes, given_.state, plans["half"], seed) for seed in (7, 8)]
    kept = merged(round, updates)
    value, own = kept.value(), kept.submodels()
    names = round.setup.per_submodel
    assert names
    assert set(own) == {"wide"}
    assert set(own["wide"]) == names
    for key in names:
        stacked = np.stack([update.state[key].double().numpy() for update in updates[:4]])
        floats = given_.state[key].is_floating_point()
        wanted = np.median(stacked, 0) if floats else np.sort(stacked, 0)[1]
        assert torch.equal(own["wide"][key], torch.as_tensor(wanted).to(given_.state[key].dtype)), key
        assert torch.equal(value[key], given_.state[key])
        assert float(kept.gathered(key).sum()) == 0
    alone = sum(updates[4].state[key].numel() for key in names)
    assert kept.recorded() == {"too_few_holders": alone}


def test_two_clients_change_nothing_and_an_event_says_so():
    given_ = example_of("mlp")
    updates = [update_of(given_.axes, given_.state, Plan(key="full"), seed) for seed in (1, 2)]
    with collect() as events:
        kept = merged(round_of(given_.it, Median(), state=given_.state), updates)
        assert same(kept.value(), given_.state) is None
    assert [event.kind for event in events] == ["round without merge"]
    assert kept.recorded() == {"too_few_holders": sum(tensor.numel() for tensor in given_.state.values())}


@pytest.mark.parametrize("damage", ["missing", "shape", "nan"])
def test_updates_that_do_not_fit_are_refused(damage):
    given_ = example_of("mlp")
    update = update_of(given_.axes, given_.state, Plan(key="full"), 1)
    name = next(iter(update.state))
    if damage == "missing":
        del update.state[name]
    elif damage == "shape":
        update.state[name] = update.state[name][1:]
    else:
        update.state[name].view(-1)[0] = math.nan
    with pytest.raises(StateError, match=r"lacks the tensor|has shape|not finite"):
        merged(round_of(given_.it, Median(), state=given_.state), [update])


@pytest.mark.parametrize("share", [0.0, 0.5, -0.1, math.nan, 1])
def test_shares_that_leave_nobody_or_everybody(share):
    with pytest.raises(MethodError, match=r"above 0 and below 0\.5"):
        TrimmedMean(share)


def test_a_rule_without_merge_says_so():
    with pytest.raises(NotImplementedError):
        CoordinateRule().merge(torch.zeros(1, 3), torch.tensor([3]))
