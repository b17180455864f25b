"""Clipped norms: the mean of changes, each no longer than the limit over all that its client merges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling import Plan
from nestling.errors import MethodError
from nestling.methods.parts.per_submodel import PerSubmodel
from nestling.methods.robust.clip_norm import ClipNorm
from nestling.server.aggregate import Merge
from nestling.server.state import ServerState
from tests.cut.cut_cases import LAWS, same
from tests.methods.robust.robust_cases import FLEETS, dense, example_of, holders, round_of, update_of, updates_of


def clipped(it, state, part, updates, *more):
    round = round_of(it, *more, part, state=state)
    start = ServerState.start(round.setup)
    start.model.update(state)
    mean = Merge(round.setup, start)
    mean.restart(start)
    rule = part.aggregator(round, mean)
    for client, update in enumerate(updates):
        rule.add(update, 1.0 + client)
    return rule


@LAWS
@given(drawn=FLEETS, limit=st.sampled_from([0.1, 5.0, 1e6]), rows=st.booleans(), name=st.sampled_from(["cnn", "tied"]))
def test_every_change_is_scaled_to_the_limit_and_averaged(drawn, limit, rows, name):
    given_ = example_of(name, torch.float64)
    updates = updates_of(given_.it, given_.state, drawn, rows)
    rule = clipped(given_.it, given_.state, ClipNorm(limit), updates)
    floats = [key for key, old in given_.state.items() if old.is_floating_point() and key not in given_.axes.tied]
    changes = {key: dense(given_.axes, key, updates) - given_.state[key].numpy() for key in floats}
    norms = [math.sqrt(sum(np.nansum(changes[key][k] ** 2) for key in floats)) for k in range(len(updates))]
    shares = [min(1.0, limit / norm) if norm else 1.0 for norm in norms]
    weights = np.arange(1.0, 1 + len(updates))
    value = rule.value()
    for key in floats:
        total = np.zeros(given_.state[key].shape)
        weight = np.zeros(given_.state[key].shape)
        for k, share in enumerate(shares):
            held = ~np.isnan(changes[key][k])
            total[held] += weights[k] * share * changes[key][k][held]
            weight[held] += weights[k]
        enough = holders(given_.axes, key, updates).numpy() >= 3
        wanted = given_.state[key].numpy() + np.where(enough, total / np.where(enough, weight, 1), 0)
        np.testing.assert_allclose(value[key].numpy(), wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(rule.gathered(key).numpy(), np.where(enough, weight, 0))
    recorded = rule.recorded()
    assert recorded["clipped"] == sum(share < 1 for share in shares)
    counts = [holders(given_.axes, key, updates) for key in given_.state if key not in given_.axes.tied]
    few = sum(int(((count > 0) & (count < 3)).sum()) for count in counts)
    assert recorded["too_few_holders"] == few


def test_what_belongs_to_sub_models_counts_in_the_norm_and_is_clipped():
    given_ = example_of("cnn", torch.float64)
    updates = [update_of(given_.axes, given_.state, Plan(key="full"), k, client=k) for k in range(3)]
    small = [update_of(given_.axes, given_.state, Plan(key="other"), 9, client=9)]
    rule = clipped(given_.it, given_.state, ClipNorm(1.0), updates + small, PerSubmodel(("norms",)))
    rule.value()
    assert rule.recorded()["clipped"] == 4
    assert set(rule.submodels()) == {"full"}, "a single client of a sub-model does not change it"
    own = rule.submodels()["full"]
    wanted, floats = {}, [key for key in given_.state if given_.state[key].is_floating_point()]
    for key in own:
        moved = 0.0
        for weight, update in zip((1.0, 2.0, 3.0), updates, strict=True):
            norm = math.sqrt(sum(float((update.state[k] - given_.state[k]).square().sum()) for k in floats))
            moved = moved + weight / 6 / norm * (update.state[key] - given_.state[key])
        wanted[key] = given_.state[key] + moved
        if key in floats:
            torch.testing.assert_close(own[key], wanted[key], rtol=1e-9, atol=1e-9)


def test_a_limit_that_nobody_reaches_is_the_mean():
    given_ = example_of("cnn")
    updates = [update_of(given_.axes, given_.state, Plan(key="full"), k, client=k) for k in range(4)]
    rule = clipped(given_.it, given_.state, ClipNorm(1e9), updates)
    start = ServerState.start(round_of(given_.it, state=given_.state).setup)
    start.model.update(given_.state)
    mean = Merge(round_of(given_.it, state=given_.state).setup, start)
    for client, update in enumerate(updates):
        mean.add(update, 1.0 + client)
    assert same(rule.value(), mean.value()) is None


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_limits_that_cannot_be(limit):
    with pytest.raises(MethodError, match="a number above 0"):
        ClipNorm(limit)
