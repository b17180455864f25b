from dataclasses import replace

import pytest
import torch

from nestling.cut import Plan, extract
from nestling.events import collect
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import parse_level
from nestling.flower.node_memory import DictMemory, FolderMemory, keep_state, kept_state
from nestling.methods import Participant
from nestling.methods.messages import Progress, Update
from tests.flower.loopback import experiment


@pytest.fixture(scope="module")
def setup():
    return simulate(Overrides(experiment("model.width=0.25"))).setup


def update(value, plan):
    tensors = {name: torch.full(tensor.shape, value) for name, tensor in plan[1].items()}
    who = (Participant(7, parse_level("a")),)
    return Update(who, plan[0], None, {}, Progress(), {f"feddyn/{name}": tensor for name, tensor in tensors.items()})


def slice_of(setup, ratio):
    plan = setup.submodel_plan(ratio)
    state = extract(setup.cut_axes, plan, setup.model.state_dict())
    return plan, {name: state[name] for name in setup.parameters}


@pytest.mark.parametrize("kind", ["dict", "folder"])
def test_a_round_that_is_done_again_begins_from_the_round_before(setup, tmp_path, kind):
    memory = DictMemory() if kind == "dict" else FolderMemory(tmp_path / "kept")
    plan = slice_of(setup, 1.0)
    assert kept_state(setup, memory, 1, plan[0]) == (0, {}, {})
    for round in (1, 2, 5):
        keep_state(setup, memory, round, update(float(round), plan))
    name = f"feddyn/{min(setup.parameters)}"
    for asked, expected in ((6, 5), (5, 2)):
        round, _, state = kept_state(setup, memory, asked, plan[0])
        assert round == expected
        assert torch.all(state[name] == expected)
    keep_state(setup, memory, 5, update(50.0, plan))  # the server was killed in round 5
    assert sorted(memory.read()) == [2, 5]
    assert torch.all(kept_state(setup, memory, 6, plan[0])[2][name] == 50)
    if kind == "folder":
        assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
            "round-000002.kept",
            "round-000005.kept",
        ]


def test_other_slices_keep_what_they_had(setup):
    memory, whole, small = DictMemory(), slice_of(setup, 1.0), slice_of(setup, 0.25)
    keep_state(setup, memory, 1, update(1.0, whole))
    keep_state(setup, memory, 2, update(2.0, small))
    values = torch.cat([tensor.flatten() for tensor in kept_state(setup, memory, 3, whole[0])[2].values()])
    assert set(values.tolist()) == {1.0, 2.0}
    assert set(torch.cat([t.flatten() for t in kept_state(setup, memory, 3, small[0])[2].values()]).tolist()) == {2.0}


def test_a_damaged_version_is_reported_and_passed_over(setup):
    memory, plan = DictMemory(), slice_of(setup, 1.0)
    keep_state(setup, memory, 1, update(1.0, plan))
    keep_state(setup, memory, 2, update(2.0, plan))
    for damaged in (b"damaged", b"", memory[2][:-1]):
        memory[2] = damaged
        with collect() as events:
            assert kept_state(setup, memory, 3, Plan(key="full"))[0] == 1
        assert [event.kind for event in events] == ["kept state damaged"]


def test_private_tensors_are_kept_beside_the_client_state():
    setup = simulate(Overrides(experiment("model.width=0.25", "method=lg-fedavg"))).setup
    memory, (plan, state) = DictMemory(), slice_of(setup, 1.0)
    assert setup.private
    trained = replace(update(3.0, (plan, state)), state={name: torch.ones_like(value) for name, value in state.items()})
    keep_state(setup, memory, 1, trained)
    number, private, kept = kept_state(setup, memory, 2, plan)
    assert number == 1
    assert private.keys() == setup.private & state.keys()
    assert all(torch.all(value == 1) for value in private.values())
    assert all(torch.all(value == 3) for value in kept.values())
