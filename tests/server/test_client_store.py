"""What clients remember: found again at the same coordinates, whatever slices came between."""

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling.cut import Plan, extract
from nestling.server.client_files import ClientFiles
from nestling.server.client_store import _get, _put

NET = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
AXES = nestling.trace(NET, torch.zeros(1, 3))
UNITS = st.fixed_dictionaries(
    {name: st.sets(st.integers(0, size - 1), min_size=1) for name, size in AXES.axes.items() if size in (6, 8)}
)


def test_nobody_remembers_at_first() -> None:
    assert _get(AXES, ClientFiles(), 0, Plan()) == {}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), UNITS), min_size=1, max_size=5), UNITS)
def test_found_again(turns: list[tuple[int, dict[str, set[int]]]], last: dict[str, set[int]]) -> None:
    store = ClientFiles()
    expected = [{name: torch.zeros(dims.shape) for name, dims in AXES.dims.items()} for _ in range(2)]
    for number, (client, units) in enumerate(turns, start=1):
        plan = Plan(units)
        ones = {name: torch.ones(dims.shape) for name, dims in AXES.dims.items()}
        small = extract(AXES, plan, ones)
        _put(AXES, store, client, plan, {f"x/{k}": number * v for k, v in small.items()}, round=number)
        tally = nestling.Tally(AXES, expected[client])
        tally.add({name: number * value for name, value in small.items()}, plan)
        expected[client] = tally.value()
    for client in {client for client, _ in turns}:
        actual = _get(AXES, store, client, Plan(last))
        for name, value in extract(AXES, Plan(last), expected[client]).items():
            torch.testing.assert_close(actual[f"x/{name}"], value, rtol=0, atol=0)


def test_the_same_slice_is_kept_as_it_is(tmp_path: Path) -> None:
    store, plan = ClientFiles(tmp_path / "memory"), nestling.plan(AXES, 0.5)
    new = {f"x/{name}": value for name, value in extract(AXES, plan, NET.state_dict()).items()}
    for round in (1, 2):
        _put(AXES, store, 7, plan, new, round=round)
    assert {name: value.shape for name, value in store.get(7)[0].items()} == {n: v.shape for n, v in new.items()}
    again = ClientFiles(tmp_path / "memory", store.index)
    assert all(torch.equal(again.get(7)[0][name], value) for name, value in new.items())


def test_a_copy_can_be_changed_alone() -> None:
    store = ClientFiles()
    _put(AXES, store, 0, Plan(), {"x/0.bias": torch.ones(6)}, round=1)
    other = store.copy()
    half = nestling.plan(AXES, 0.5)
    _put(AXES, other, 0, half, {"x/0.bias": torch.zeros(3)}, round=2)
    assert _get(AXES, store, 0, Plan())["x/0.bias"].tolist() == [1] * 6
    assert _get(AXES, other, 0, Plan())["x/0.bias"].tolist() == [0] * 3 + [1] * 3


def test_what_a_client_never_trained_is_as_the_model_began() -> None:
    store, start = ClientFiles(), NET.state_dict()
    half, most = nestling.plan(AXES, 0.5), nestling.plan(AXES, 0.8)
    own = {name: value + 1 for name, value in extract(AXES, half, start).items()}
    _put(AXES, store, 0, half, own, round=1, model=start)
    tally = nestling.Tally(AXES, start)
    tally.add(own, half)
    expected = tally.value()
    for plan in (most, Plan()):
        actual = _get(AXES, store, 0, plan, start)
        assert all(torch.equal(actual[name], value) for name, value in extract(AXES, plan, expected).items())
    _put(AXES, store, 0, most, extract(AXES, most, expected), round=2, model=start)
    assert all(torch.equal(store.get(0)[0][name], value) for name, value in expected.items())
