"""Sums over cohorts: the plain mean of those who are in them, over random slices and whoever drops out."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling import Plan
from nestling.events import collect
from nestling.methods.parts.per_submodel import NORMS, PerSubmodel
from nestling.methods.secure.masked_sum import MaskedSum
from nestling.methods.secure.secure_aggregation import SecureAggregation
from nestling.secagg.secagg_run import STEPS, secure_sum
from nestling.server.aggregate import Merge
from nestling.server.state import ServerState
from tests.cut.cut_cases import LAWS, PLANS, random_plan
from tests.methods.robust.robust_cases import dense, example_of, holders, round_of, update_of, updates_of


def mean_of(it, state, *parts):
    round = round_of(it, *parts, state=state)
    start = ServerState.start(round.setup)
    start.model.update(state)
    mean = Merge(round.setup, start)
    mean.restart(start)
    return round, mean


def summed(it, state, part, updates, *more, drops=()):
    """The merge of updates with weights 1, 2, …; clients in `drops` leave the protocol at a step."""
    round, mean = mean_of(it, state, *more, part)
    rule = part.aggregator(round, mean)
    for update in updates:
        rule.add(update, 1.0 + update.who[0].client)
    drops = dict(drops)
    with patch.object(MaskedSum, "_drop", lambda _self, update: drops.get(update.who[0].client)):
        return rule, rule.value()


def floats(given_):
    return [key for key, old in given_.state.items() if old.is_floating_point() and key not in given_.axes.tied]


@settings(LAWS, max_examples=6)
@given(
    drawn=st.lists(PLANS, min_size=2, max_size=6), bits=st.sampled_from([32, 64]), name=st.sampled_from(["cnn", "tied"])
)
def test_padded_to_the_union_it_is_the_mean_of_the_holders(drawn, bits, name):
    """Over random slices; a coordinate of fewer than three holders keeps its value."""
    given_ = example_of(name, torch.float64)
    updates = updates_of(given_.it, given_.state, drawn)
    rule, value = summed(given_.it, given_.state, SecureAggregation("union", threshold=1.0, bits=bits), updates)
    few = [holders(given_.axes, key, updates) for key in given_.state if key not in given_.axes.tied]
    for key in floats(given_):
        old, weights = given_.state[key].numpy(), np.arange(1.0, 1 + len(updates))
        changes = dense(given_.axes, key, updates) - old
        held = ~np.isnan(changes)
        weight = np.tensordot(weights, held, 1)
        enough = holders(given_.axes, key, updates).numpy() >= 3
        total = np.tensordot(weights, np.where(held, changes, 0.0), 1)
        wanted = old + np.where(enough, total / np.where(enough, weight, 1.0), 0.0)
        np.testing.assert_allclose(value[key].numpy(), wanted, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(value[key].numpy()[~enough], old[~enough])
        np.testing.assert_allclose(rule.gathered(key).numpy(), np.where(enough, weight, 0.0))
    assert rule.recorded()["secagg"]["unmerged_coordinates"] == sum(int(((n > 0) & (n < 3)).sum()) for n in few)
    assert rule.clients == (len(updates) if len(updates) >= 3 else 0)


@settings(LAWS, max_examples=8)
@given(
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
    sizes=st.lists(st.integers(3, 6), min_size=3, max_size=3),
    drops=st.dictionaries(st.integers(0, 17), st.sampled_from(STEPS), max_size=4),
)
def test_cohorts_of_one_slice_are_the_plain_mean_of_those_that_remain(seeds, sizes, drops):
    """Dropouts at every step; a cohort of which too few remain changes nothing."""
    given_ = example_of("cnn", torch.float64)
    part = SecureAggregation()
    updates, kept, left = [], [], 0
    for seed, size in zip(seeds, sizes, strict=False):
        plan = random_plan(given_.axes, seed, "subset")
        clients = range(len(updates), len(updates) + size)
        cohort = [update_of(given_.axes, given_.state, plan, seed + k, client=k) for k in clients]
        updates += cohort
        if sum(k not in drops for k in clients) >= part.least(size):  # the last step counts all that dropped out
            kept += [update for update in cohort if drops.get(update.who[0].client, "reveal") == "reveal"]
        else:
            left += 1
    with collect() as events:
        rule, value = summed(given_.it, given_.state, part, updates, drops=drops.items())
    _, mean = mean_of(given_.it, given_.state)
    for update in kept:
        mean.add(update, 1.0 + update.who[0].client)
    for key in floats(given_):
        torch.testing.assert_close(value[key], mean.value()[key], rtol=0, atol=1e-5)
        torch.testing.assert_close(rule.gathered(key), mean.gathered(key))
    assert rule.clients == len(kept)
    assert rule.recorded()["secagg"]["dropped_cohorts"] == left
    assert sum(event.kind == "cohort dropped" for event in events) == left


def cohort_of(given_, clients, plan=None, first=0):
    plan = plan or Plan(key="full")
    return [update_of(given_.axes, given_.state, plan, 50 + k, client=k) for k in range(first, first + clients)]


def test_two_clients_of_a_slice_are_left_out_and_counted():
    given_ = example_of("cnn", torch.float64)
    plan = random_plan(given_.axes, 3, "subset")
    with collect() as events:
        rule, value = summed(given_.it, given_.state, SecureAggregation(), cohort_of(given_, 2, plan))
    assert all(torch.equal(value[key], given_.state[key]) for key in given_.state)
    assert [(event.kind, event.count) for event in events] == [("client left out", 2)]
    assert rule.recorded()["secagg"] | {"unmerged_coordinates": 0} == {
        "cohorts": 0, "dropped_cohorts": 0, "clients": 0, "left_out": 2, "clipped_values": 0, "unmerged_coordinates": 0
    }  # fmt: skip
    assert rule.traffic() == (0, 0)


def test_what_the_server_gets_is_not_the_update():
    """Nothing that leaves the protocol but the sum: the server's merge sees one vector for a whole cohort."""
    given_, totals = example_of("cnn", torch.float64), []

    def watched(*arguments, **settings):
        result = secure_sum(*arguments, **settings)
        totals.append(result)
        return result

    with patch("nestling.methods.secure.masked_sum.secure_sum", watched):
        summed(given_.it, given_.state, SecureAggregation(size=4), cohort_of(given_, 9))
    assert [len(result.clients) for result in totals] == [3, 3, 3]


@pytest.mark.parametrize("gone", [(), (0,), (3,)])
def test_every_coordinate_of_a_padded_sum_has_three_clients_whoever_drops_out(gone):
    """Of three clients of the whole net and two of a slice, one may drop out: nothing outside the slice is summed."""
    given_ = example_of("cnn", torch.float64)
    plan = random_plan(given_.axes, 3, "subset")
    updates = cohort_of(given_, 3) + cohort_of(given_, 2, plan, first=3)
    part = SecureAggregation("union", threshold=0.8)
    rule, _ = summed(given_.it, given_.state, part, updates, drops=[(client, "vector") for client in gone])
    assert rule.clients == 5 - len(gone)
    kept = [update for update in updates if update.who[0].client not in gone]
    for key in floats(given_):
        everybody = holders(given_.axes, key, updates) == 5
        assert torch.equal(rule.gathered(key) > 0, everybody)
        assert (holders(given_.axes, key, kept)[everybody] >= 3).all()


def test_values_out_of_range_are_clipped_and_reported():
    given_ = example_of("cnn", torch.float64)
    updates = cohort_of(given_, 3)
    changes = torch.cat([(updates[2].state[key] - given_.state[key]).abs().flatten() for key in floats(given_)])
    limit = float(changes.quantile(0.9))
    with collect() as events:
        rule, value = summed(given_.it, given_.state, SecureAggregation(range=limit), updates)
    clipped = rule.recorded()["secagg"]["clipped_values"]
    assert [(event.kind, event.count) for event in events] == [("value clipped", clipped)]
    assert clipped >= 0.09 * len(changes)
    for key in floats(given_):
        moved = [(k + 1) / 3 * (update.state[key] - given_.state[key]) for k, update in enumerate(updates)]
        wanted = given_.state[key] + sum(one.clamp(-limit, limit) for one in moved) / 2
        torch.testing.assert_close(value[key], wanted, rtol=0, atol=1e-5)


def test_what_belongs_to_a_sub_model_is_its_own_mean():
    given_, part = example_of("cnn", torch.float64), SecureAggregation(size=3)
    updates = (
        cohort_of(given_, 6)
        + cohort_of(given_, 3, Plan(key="other"), first=6)
        + cohort_of(given_, 2, Plan(key="few"), first=9)
    )
    counters = {key: old for key, old in given_.state.items() if not old.is_floating_point()}
    for update in updates:
        update.state.update(counters)
    rule, _ = summed(given_.it, given_.state, part, updates, PerSubmodel((NORMS,)))
    _, mean = mean_of(given_.it, given_.state, PerSubmodel((NORMS,)))
    for update in updates:
        mean.add(update, 1.0 + update.who[0].client)
    own, wanted = rule.submodels(), mean.submodels()
    assert own.keys() == {"full", "other"}
    for key, tensors in own.items():
        assert tensors.keys() == wanted[key].keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, wanted[key][name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_seed_decides_all(dropout):
    given_ = example_of("cnn")
    part = SecureAggregation(dropout=dropout)
    results = []
    for order in (1, -1):
        round, mean = mean_of(given_.it, given_.state, part)
        rule = part.aggregator(round, mean)
        for update in cohort_of(given_, 12)[::order]:
            rule.add(update, 1.0)
        results.append((rule.value(), rule.recorded(), rule.traffic()))
    assert all(torch.equal(results[0][0][key], results[1][0][key]) for key in given_.state)
    assert results[0][1:] == results[1][1:]
    assert (results[0][1]["secagg"]["clients"] == 12) is (dropout == 0)
