"""Branches: the slices of consecutive clients merged where they train, by the order of jobs alone."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nestling.engines.limits import TimeLimits
from nestling.engines.packing import dump
from nestling.engines.retries import Tasks
from nestling.errors import ConfigError
from nestling.experiment import find
from nestling.experiment.runner import run
from nestling.experiment.simulated_clients import SimulatedClients, _branches
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import names
from nestling.methods.messages import BranchJob, BranchReply, TrainJob
from nestling.server.state import ServerState
from nestling.settings import Data, Evaluate, FleetSettings, Model, Upload
from tests.harness import engine_of, rounds_of
from tests.quick import mostly_slow
from tests.run_cases import WITH_PUBLIC, same_state, small

CLASSES = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3)
EVERYBODY = FleetSettings(clients=8, per_round=8, levels="a-b-d")
LAST = Evaluate(every=9, samples=100, norm_batch=50)


def branched(experiment, fan_in):
    return experiment.with_settings([f"server.fan_in={fan_in}"])


@given(sizes=st.lists(st.integers(1, 9), max_size=30), fan_in=st.integers(0, 40))
def test_branches_are_consecutive_groups_of_no_more_clients_than_may_be(sizes, fan_in):
    groups = [SimpleNamespace(jobs=range(size)) for size in sizes]
    branches = _branches(groups, fan_in)
    assert [group for branch in branches for group in branch] == groups
    totals = [sum(len(group.jobs) for group in branch) for branch in branches]
    assert all(total <= fan_in or len(branch) == 1 for total, branch in zip(totals, branches, strict=True))
    # no branch has room for the group that begins the next
    assert all(a + len(after[0].jobs) > fan_in for a, after in zip(totals, branches[1:], strict=False))


CASES = {
    "rows": {"data": CLASSES},
    "selected rows": {"data": CLASSES, "select_rows": True},
    "random sets": {"method": "fed-dropout", "data": CLASSES},
    "uploads": {"method": "fedavg", "upload": Upload(format="topk-8bit", fraction=0.3, feedback=True)},
    "private tensors": {"method": "lg-fedavg"},
    "groups": {"group_clients": 3},
    "server's optimizer": {"method": "fedrolex", "server": small().server.__class__(optimizer="fedadam", lr=0.01)},
}


def flat_and_tree(rounds=2, fan_in=3, **changes):
    experiment = small(**{"fleet": EVERYBODY, "rounds": rounds, "evaluate": LAST, **changes})
    return [rounds_of(one)[1] for one in (experiment, branched(experiment, fan_in))]


def assert_alike(one, other, tolerance=2e-4):
    """All that a server knows is the same, up to last bits of weights."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            other[name], value, rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("case", mostly_slow(CASES, quick=2))
def test_a_tree_merges_what_one_server_merges(case):
    flat, tree = flat_and_tree(**CASES[case])
    for one, other in zip(flat[1:], tree[1:], strict=True):
        assert_alike(one.model, other.model)
        assert_alike(one.optimizer, other.optimizer)
        assert one.totals.counts() == other.totals.counts()
        assert all(torch.equal(count, other.totals.coverage[name]) for name, count in one.totals.coverage.items())
        for store, same in zip(
            (one.clients.private, one.clients.kept), (other.clients.private, other.clients.kept), strict=True
        ):
            assert store.clients() == same.clients()
            for client in store.clients():
                assert_alike(store.get(client)[0], same.get(client)[0])


@pytest.mark.parametrize("method", mostly_slow(sorted(set(names()) - {"feddf", "ds-fl", "fed-et"}), quick=1))
def test_every_method_that_needs_no_update_by_itself(method):
    changes = {"data": CLASSES, "method": method}
    if method in ("nefl", "depthfl"):
        changes["model"] = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False})
        changes["options"] = {"variant": "plain"} if method == "depthfl" else {}
    if method == "lora":  # by product, the server needs every update by itself
        changes |= {"model": find("lora-digits").model, "options": {"merge": "factors"}}
    if method in WITH_PUBLIC:
        changes["data"] = Data(name="digits", max_samples=400, public_share=0.2)
    flat, tree = flat_and_tree(rounds=1, **changes)
    assert_alike(flat[1].model, tree[1].model)
    assert flat[1].submodels.keys() == tree[1].submodels.keys()
    for key, tensors in flat[1].submodels.items():
        assert list(tensors) == list(tree[1].submodels[key])
        assert_alike(tensors, tree[1].submodels[key])


@pytest.mark.parametrize("method", ["feddf", "ds-fl", "fed-et"])
def test_methods_that_need_every_update_refuse_branches(method):
    experiment = small(method=method, data=Data(name="digits", max_samples=400, public_share=0.2))
    with pytest.raises(ConfigError, match=f"the server of {method} needs the update of every client by itself"):
        simulate(Overrides(branched(experiment, 4)))


def test_the_server_receives_one_merge_for_a_branch():
    """All clients of a level hold one slice, so that a branch is as large as its different slices."""
    fleet = FleetSettings(clients=8, per_round=8, levels="a-b")
    received = {}
    for fan_in in (0, 4, 8, 20):
        simulation = simulate(Overrides(branched(small(fleet=fleet, options={"masked": False}), fan_in)))
        clients, state = SimulatedClients(simulation, engine_of(simulation)), ServerState.start(simulation.setup)
        replies = list(clients.train(train_jobs(simulation, state), state))
        assert all(isinstance(reply, BranchReply) == bool(fan_in) for reply in replies)
        received[fan_in] = len(replies), sum(map(size, replies))
    assert [count for count, _ in received.values()] == [8, 2, 1, 1]
    whole = sum(tensor.nbytes for tensor in state.model.values())
    assert received[0][1] > 4.9 * whole  # four clients of the whole model, four of a quarter
    assert received[8][1] < 1.6 * whole
    assert received[8] == received[20]


def train_jobs(simulation, state):
    context = state.context(simulation.setup)
    return [
        TrainJob(who, simulation.setup.method.client_plan(context, who), 1, context.lr)
        for who in simulation.participants(1)
    ]


def size(reply):
    message = dump(reply)
    return len(message.body) + sum(array.nbytes for array in message.arrays)


class Double(nn.Module):
    """A model of float64 parameters, whose changes are summed where there is no room for means."""

    def __init__(self, classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes)).double()

    def forward(self, x):
        return self.layers(x.double())


@pytest.mark.parametrize("room", [5.0, 0.0])
def test_in_double_precision_a_tree_is_the_flat_merge(monkeypatch, room):
    monkeypatch.setattr("nestling.cut.merge.ROOM", room)
    model = Model(name=f"{__name__}:Double")
    flat, tree = flat_and_tree(method="fed-dropout", options={"scaler": False}, model=model, data=CLASSES)
    assert_alike(flat[2].model, tree[2].model, 1e-11)


@pytest.mark.slow
def test_the_number_of_workers_changes_no_byte_of_a_tree():
    experiment = branched(small(method="fed-dropout", fleet=EVERYBODY, data=CLASSES), 3)
    one, two = (run(experiment.with_settings([f"workers={workers}"])) for workers in (1, 2))
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)


def test_a_branch_may_take_the_time_of_all_its_jobs():
    limits = TimeLimits(10.0)
    for job, late in ((BranchJob((None,) * 3), 30.0), (None, 10.0)):
        task, _ = Tasks([job], None, limits).take(lambda job: job)
        for seconds in (late, late + 1):
            task.seconds = seconds
            assert Tasks([], None, limits).late(task) == (seconds > late)
