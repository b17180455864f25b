"""Krum against NumPy: who is chosen among equal slices, and what becomes of groups that are too small."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling import Plan
from nestling.errors import MethodError
from nestling.events import collect
from nestling.methods.robust.krum import Krum, best
from nestling.server.aggregate import Merge
from nestling.server.state import ServerState
from tests.cut.cut_cases import LAWS, SEEDS, same
from tests.methods.robust.robust_cases import dense, example_of, round_of, update_of


def half(axes, key="half"):
    return Plan({name: range(max(1, size // 2)) for name, size in axes.axes.items()}, key=key)


def distinct(update):
    """The tensors of an update, each under one name."""
    names = {tensor.data_ptr(): name for name, tensor in update.state.items()}
    return {name: update.state[name] for name in names.values()}


def flat(update):
    return np.concatenate(
        [tensor.double().numpy().ravel() for tensor in distinct(update).values() if tensor.is_floating_point()]
    )


def chosen(updates, attackers, count):
    """Blanchard et al., §4, written out."""
    vectors, n = [flat(update) for update in updates], len(updates)
    scores = []
    for i in range(n):
        distances = sorted(((vectors[i] - vectors[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(distances[: n - attackers - 2]))
    return sorted(range(n), key=scores.__getitem__)[:count]


def krum_of(it, state, part, updates):
    round = round_of(it, part, state=state)
    start = ServerState.start(round.setup)
    start.model.update(state)
    mean = Merge(round.setup, start)
    mean.restart(start)
    krum = part.aggregator(round, mean)
    for update in updates:
        krum.add(update, 5.0)
    return krum


@LAWS
@given(seed=SEEDS, attackers=st.integers(0, 2), more=st.integers(0, 3), multi=st.booleans())
def test_the_chosen_updates_are_those_of_the_paper(seed, attackers, more, multi):
    given_ = example_of("tied" if seed % 2 else "cnn")
    plans = Plan(key="full"), half(given_.axes)
    count = 2 * attackers + 3
    groups = [
        [
            update_of(given_.axes, given_.state, plan, seed + 100 * g + k, client=10 * g + k)
            for k in range(count + g * more)
        ]
        for g, plan in enumerate(plans)
    ]
    krum = krum_of(given_.it, given_.state, Krum(attackers, multi), [*groups[0], *groups[1]])
    value = krum.value()
    kept = []
    for group in groups:
        m = len(group) - attackers - 2 if multi else 1
        places = chosen(group, attackers, m)
        assert best([distinct(update) for update in group], attackers, m) == places
        kept += [group[place] for place in places]
    for name, tensor in value.items():
        if name in given_.axes.tied or not tensor.is_floating_point():
            continue
        wanted = np.nanmean(dense(given_.axes, name, kept), 0)
        torch.testing.assert_close(tensor.double(), torch.from_numpy(wanted), rtol=1e-5, atol=1e-6)
    assert krum.recorded() == {"unjudged": 0, "too_few_holders": 0}
    assert krum.clients == sum(map(len, groups))


def test_far_away_updates_are_never_chosen():
    given_ = example_of("cnn")
    updates = [update_of(given_.axes, given_.state, Plan(key="full"), k, client=k) for k in range(7)]
    for update in (updates[0], updates[5]):
        update.state.update({key: tensor * -40 for key, tensor in update.state.items() if tensor.is_floating_point()})
    states = [update.state for update in updates]
    assert not {0, 5} & set(best(states, 2, 1))
    assert not {0, 5} & set(best(states, 2, 3))


def test_groups_that_cannot_be_judged_are_left_out_and_counted():
    given_ = example_of("cnn")
    narrow = [update_of(given_.axes, given_.state, half(given_.axes), k, client=k) for k in range(5)]
    wide = [update_of(given_.axes, given_.state, Plan(key="full"), k, client=k) for k in range(5, 9)]
    with collect() as events:
        krum = krum_of(given_.it, given_.state, Krum(1), [*wide, *narrow])
        value = krum.value()
    assert [(event.kind, event.count) for event in events] == [("update not judged", 4)]
    assert "krum:1 needs 5 of one slice" in events[0].message
    only = 0
    for name, tensor in given_.state.items():
        held = ~np.isnan(dense(given_.axes, name, narrow)).all(0)
        outside = torch.from_numpy(np.asarray(~held))
        assert torch.equal(value[name][outside], tensor[outside])
        only += int(outside.sum())
    assert only > 0
    assert krum.recorded() == {"unjudged": 4, "too_few_holders": only}
    alone = krum_of(given_.it, given_.state, Krum(1), narrow)
    assert same(alone.value(), value) is None


def test_a_negative_number_of_attackers():
    with pytest.raises(MethodError, match="0 or more, not -1"):
        Krum(-1)
