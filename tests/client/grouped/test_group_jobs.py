"""Grouped clients in rounds: who trains together depends on the round alone; the result is that of training alone."""

import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.client.grouped.group_jobs import Grouping, table
from nestling.client.grouped.group_worker import GroupWorker
from nestling.data import Dataset
from nestling.engines import LocalEngine
from nestling.errors import ConfigError, DataError, TrainingError
from nestling.events import collect
from nestling.experiment import resume, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods import Part, make
from nestling.methods.messages import TrainJob
from nestling.server.state import ServerState
from nestling.settings import Data, Experiment, FleetSettings, LocalTraining, Model
from tests.harness import engine_of, worker_of
from tests.quick import mostly_slow
from tests.run_cases import Fatal, same_state
from tests.run_cases import small as alone

small = partial(alone, group_clients="auto")
CLASSES = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3)
FLEET = FleetSettings(clients=10, per_round=8, levels="b-d")
SHALLOW = {"widths": [8, 8, 8, 8], "depths": [1, 2, 1, 1], "learn_steps": False}
ADAM = LocalTraining(optimizer="adam", lr=0.01, epochs=1, batch_size=20)
WORDS = {
    "model": Model(name="transformer-nwp", options={"width": 8, "heads": 2, "hidden": 8, "depth": 1}),
    "data": Data(name="words", partition="user", max_sequences=4),
}
LAWS = settings(deadline=None, derandomize=True, max_examples=20, database=None)


@pytest.fixture
def exactly(monkeypatch):
    """Runs in double precision, so that rounding hides nothing: models, and images as they read them."""
    models = sys.modules["nestling.experiment.model"]
    build, ready, example = models._build, Dataset.ready, Dataset.example
    monkeypatch.setattr(models, "_build", lambda *settings: build(*settings).double())
    monkeypatch.setattr(Dataset, "ready", lambda self, inputs: ready(self, inputs).double())
    monkeypatch.setattr(Dataset, "example", lambda self, batch: example(self, batch).double())


@dataclass(frozen=True)
class ClientGroup:
    """Clients that train in one job, and how."""

    clients: tuple
    layout: str | None


def divided(experiment, round=1, **own):
    """The clients of a round, their ratios, and the groups that they train in."""
    simulation = simulate(Overrides(experiment, **own))
    setup, config = simulation.setup, simulation.settings
    context, drawn = ServerState.start(setup).context(setup, number=round), simulation.participants(round)
    jobs = [TrainJob(who, setup.method.client_plan(context, who), round, context.lr) for who in drawn]
    groups = Grouping(setup, simulation.data, simulation.costs.cost, config.group_clients, config.device).divide(jobs)
    groups = [ClientGroup(tuple(job.who.client for job in group.jobs), group.layout) for group in groups]
    return [who.client for who in drawn], {who.client: who.level.ratio for who in drawn}, groups


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit():
    experiment = small(method="fed-dropout", rounds=2, data=CLASSES, fleet=FLEET)
    many = [experiment.with_settings([f"workers={workers}"]) for workers in (1, 2, 8)]
    dealt = [divided(one)[2] for one in many]
    assert any(one.layout for one in dealt[0])
    assert dealt[0] == dealt[1] == dealt[2]
    one, two = map(run, many[:2])
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)


@pytest.mark.parametrize(
    ("method", "changes"),
    mostly_slow(
        [
            ("heterofl", {}),
            ("fedrolex", {"local": LocalTraining(lr=0.05, epochs=1, batch_size=20, momentum=0.5, clip_norm=0.1)}),
            ("fedprox", {"model": Model(name="mlp", options={"widths": [12, 8]}), "local": ADAM}),
            ("lg-fedavg", {"model": Model(name="cnn", options={"widths": [8, 8, 8, 8], "norm": "gn"})}),
            ("heterofl", WORDS),
            ("nefl", {"model": Model(name="resnet18", options=SHALLOW)}),
        ],
        quick=3,
    ),
)
@pytest.mark.usefixtures("exactly")
def test_a_round_of_groups_is_a_round_of_clients_one_by_one(method, changes):
    together, alone = (
        run(small(**{"method": method, "rounds": 1, "data": CLASSES, "fleet": FLEET, "group_clients": group} | changes))
        for group in (3, "off")
    )
    for name, tensor in alone.state.items():
        torch.testing.assert_close(together.state[name], tensor, rtol=1e-9, atol=1e-10, msg=name)
    one, other = together.rounds[0], alone.rounds[0]
    assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-9)
    assert one["clients"] == other["clients"] == 8
    assert one["bytes_up"] == other["bytes_up"]
    if method != "lg-fedavg":
        assert not same_state(together.state, alone.state), "nothing was trained together"


@pytest.mark.parametrize("weighting", mostly_slow(["samples", "none", "width"], quick=1))
@pytest.mark.parametrize(
    ("method", "options", "model"),
    [
        ("heterofl", {}, Model(name="mlp", options={"widths": [12, 8]})),
        ("fedrolex", {"masked": False}, Model(name="cnn", options={"widths": [4, 8]})),
        ("nefl", {}, Model(name="resnet18", options=SHALLOW)),
        ("fed-dropout", {}, Model(name="mlp", options={"widths": [12, 8]})),
    ],
)
@pytest.mark.usefixtures("exactly")
def test_clients_of_a_group_with_one_slice_are_averaged_before_they_are_merged(method, options, model, weighting):
    """Nothing that a round tells, and no weight but for rounding, depends on where the mean was taken."""
    many = Data(
        name="digits", max_samples=400, partition="dirichlet", alpha=50.0, min_samples=2
    )  # all hold all classes
    fleet = FleetSettings(clients=12, per_round=9, levels="b-d")
    rounds, states = [], []
    for group in (3, "off"):
        config = small(method=method, options=options, model=model, data=many, fleet=fleet, group_clients=group)
        simulation = simulate(Overrides(config.with_settings([f"server.weighting={weighting}"])))
        worker, means = worker_of(simulation), []

        def work(job, worker=worker, means=means):
            reply = worker(job)
            means += [len(update.who) for update in (reply if isinstance(reply, list) else [reply])]
            return reply

        ticks = []
        simulator = Simulator(simulation, LocalEngine(lambda work=work: work), partial(ticks.append, 1))
        state, figures = simulator.run_round(ServerState.start(simulation.setup))
        assert sum(means) == len(ticks) == figures["clients"] == 9
        assert (max(means) > 1) == (group == 3 and method != "fed-dropout")  # whose slices are all different
        rounds.append(figures)
        states.append(state)
    one, other = rounds
    assert one.pop("train_loss") == pytest.approx(other.pop("train_loss"), rel=1e-9)
    assert one == other
    for name, tensor in states[1].model.items():
        torch.testing.assert_close(states[0].model[name], tensor, rtol=1e-9, atol=1e-10, msg=name)
    assert all(
        torch.equal(states[0].totals.coverage[axis], counts) for axis, counts in states[1].totals.coverage.items()
    )
    for key, own in states[1].submodels.items():
        for name, tensor in own.items():
            torch.testing.assert_close(states[0].submodels[key][name], tensor, rtol=1e-9, atol=1e-10, msg=name)


@LAWS
@given(st.integers(1, 60), st.one_of(st.integers(1, 20), st.sampled_from(["auto", "off"])), st.integers(0, 9))
def test_every_client_is_in_one_group_of_its_shape(per_round, group, seed):
    clients, ratios, jobs_of = divided(
        small(
            seed=seed,
            model=Model(name="mlp", options={"widths": [8, 8]}),
            fleet=FleetSettings(clients=60, per_round=per_round, levels="a-c"),
            group_clients=group,
        )
    )
    members = [client for one in jobs_of for client in one.clients]
    assert sorted(members) == sorted(clients)
    most = {"off": 1, "auto": 50}.get(group, group)
    for one in jobs_of:
        assert len({ratios[client] for client in one.clients}) == 1
        alike = list(ratios.values()).count(ratios[one.clients[0]])
        assert 1 <= len(one.clients) <= (max(1, alike // 8) if one.layout is None else most)
        assert one.layout is None or len(one.clients) > 1
    firsts = [min(clients.index(client) for client in one.clients) for one in jobs_of]
    assert firsts == sorted(firsts)
    for ratio in set(ratios.values()):  # of one shape, all groups are of nearly the same size
        sizes = [len(one.clients) for one in jobs_of if ratios[one.clients[0]] == ratio]
        assert max(sizes) - min(sizes) <= 1
    if isinstance(group, int) and group > 1:
        assert len(jobs_of) == sum(math.ceil(list(ratios.values()).count(r) / group) for r in set(ratios.values()))


@pytest.mark.parametrize(("room", "size"), [(0, 17), (2**28, 50)])
def test_a_group_takes_no_more_memory_than_the_whole_model(room, size, monkeypatch):
    """Of a perceptron of 1/8 that is as much as 23 take, or as many as pay where it is little anyway."""
    monkeypatch.setattr(sys.modules["nestling.client.grouped.group_jobs"], "_ROOM", room)
    fleet = FleetSettings(clients=100, per_round=100, levels="d")
    config = small(model=Model(name="mlp", options={"widths": [400, 400]}), fleet=fleet, group_clients="auto")
    simulation = simulate(Overrides(config))
    setup, cost = simulation.setup, simulation.costs.cost
    assert max(len(one.clients) for one in divided(config)[2]) == size
    assert size * cost(setup.submodel_plan(1 / 8)).memory <= max(room, cost(setup.global_plan()).memory)


@pytest.mark.parametrize("method", mostly_slow(["heterofl", "fed-dropout", "fjord", "lg-fedavg", "depthfl"], quick=2))
@pytest.mark.usefixtures("exactly")
def test_small_clients_that_train_one_by_one_share_jobs_and_nothing_else(method, monkeypatch):
    """The same round, but for the order of sums, whether a client's training is a job or a part of one."""
    changes = (
        {"model": Model(name="resnet18-exits", options={"widths": [4] * 4, "depths": [1] * 4})}
        if method == "depthfl"
        else {}
    )
    experiment = small(
        method=method,
        data=Data(name="digits", max_samples=400, partition="iid"),
        fleet=FleetSettings(clients=40, per_round=36, levels="a-c"),
        group_clients="off",
        **changes,
    )
    sizes = [len(one.clients) for one in divided(experiment)[2]]
    assert all(one.layout is None for one in divided(experiment)[2])
    assert sum(sizes) == 36
    assert max(sizes) > 1
    shared = run(experiment.with_settings(["rounds=1"]))
    monkeypatch.setattr(sys.modules["nestling.client.grouped.group_jobs"], "_BUSY", 0.0)
    assert max(len(one.clients) for one in divided(experiment)[2]) == 1
    alone = run(experiment.with_settings(["rounds=1"]))
    for name, tensor in alone.state.items():
        torch.testing.assert_close(shared.state[name], tensor, rtol=1e-9, atol=1e-10, msg=name)
    one, other = shared.rounds[0], alone.rounds[0]
    assert one.pop("train_loss") == pytest.approx(other.pop("train_loss"), rel=1e-9)
    assert {name: one[name] for name in ("clients", "bytes_up", "client_macs", "levels", "train_accuracy")} == {
        name: other[name] for name in ("clients", "bytes_up", "client_macs", "levels", "train_accuracy")
    }


def test_large_clients_do_not_share_jobs():
    """Their training takes far longer than a message, and whoever has many workers wants many jobs."""
    experiment = small(
        model=Model(name="cnn"),
        data=Data(name="digits", max_samples=1200),
        fleet=FleetSettings(clients=40, per_round=40, levels="a"),
        local=LocalTraining(epochs=50, batch_size=10),
    )
    assert all(len(one.clients) == 1 for one in divided(experiment)[2])


def test_groups_hold_clients_of_like_numbers_of_samples():
    experiment = small(
        data=Data(name="digits", max_samples=400, partition="dirichlet", alpha=0.3, min_samples=2),
        fleet=FleetSettings(clients=12, per_round=12, levels="a"),
        group_clients=4,
    )
    simulation = simulate(Overrides(experiment))
    counts = [[len(simulation.partition.train[client]) for client in one.clients] for one in divided(experiment)[2]]
    ranges = sorted((min(part), max(part)) for part in counts)
    assert len(ranges) == 3
    assert all(high <= low for (_, high), (low, _) in pairwise(ranges))


@dataclass(frozen=True)
class Keeping(Part):
    """A part whose clients might keep something."""

    def finish(self, client):
        return {}


def test_wide_models_and_other_losses_train_one_by_one():
    fleet = FleetSettings(clients=12, per_round=12, levels="a")
    wide = small(fleet=fleet, model=Model(name="cnn"))
    assert not any(one.layout for one in divided(wide)[2])
    narrow = small(fleet=fleet, model=Model(name="cnn", options={"widths": [4, 8, 8, 16]}))
    assert all(one.layout == "channels" for one in divided(narrow)[2])
    assert not any(one.layout for one in divided(small(fleet=fleet, method="fjord", group_clients=4))[2])
    keeping = make("heterofl").with_parts(Keeping())
    assert not any(one.layout for one in divided(small(fleet=fleet, group_clients=4), method=keeping)[2])


def test_the_table_was_measured():
    jobs_of = table()
    assert "bench.groups" in jobs_of.command
    assert {row.kind for row in jobs_of.rows} == {"perceptron", "convolution", "transformer"}
    assert all(set(row.gains) == {2, 5, 10, 20, 50} for row in jobs_of.rows)


@pytest.mark.slow
def test_a_group_whose_workers_died_is_trained_here_as_it_would_have_been_there(tmp_path):
    """What the machine does changes no bit: nobody is dropped, and nobody trains alone who trained with others."""
    overrides = Overrides(small(data=CLASSES, fleet=FLEET, group_clients=3))
    simulation = simulate(overrides)
    client = simulation.fleet.sample(1)[0]
    states = []
    for engine in (
        engine_of(simulation),
        LocalEngine(partial(Fatal, overrides, client=client, log=tmp_path / "log"), 2),
    ):
        ticks = []
        simulator = Simulator(simulation, engine, partial(ticks.append, 1))
        state, figures = simulator.run_round(ServerState.start(simulation.setup))
        engine.close()
        assert (figures["clients"], figures["dropped"], len(ticks)) == (8, 0, 8)
        states.append(state)
    assert (tmp_path / "log").read_text().split() in (["3"] * 3, ["2"] * 3)  # two workers, and the main process
    assert same_state(states[0].model, states[1].model)


def test_a_group_that_cannot_train_together_trains_one_by_one_and_says_so(monkeypatch):
    simulation = simulate(Overrides(small(data=CLASSES, fleet=FLEET, group_clients=3)))
    alone = simulate(Overrides(small(data=CLASSES, fleet=FLEET, group_clients="off")))

    def refuse(*_):
        raise TrainingError("no room for all of them")

    monkeypatch.setattr(GroupWorker, "_train_together", refuse)
    with collect() as events:
        state, _ = Simulator(simulation, engine_of(simulation)).run_round(ServerState.start(simulation.setup))
    assert {event.kind for event in events} == {"group split"}
    assert "trained one by one, not together: no room for all of them" in events[0].message
    other, _ = Simulator(alone, engine_of(alone)).run_round(ServerState.start(alone.setup))
    for name, tensor in other.model.items():  # one after another; means of several are taken in another order
        assert torch.allclose(state.model[name], tensor, atol=1e-6)


def test_errors_name_the_client():
    with pytest.raises(TrainingError, match=r"round 1, client \d+: the training loss is no longer a number"):
        run(small(fleet=FLEET, group_clients=4, local=LocalTraining(lr=1e30, epochs=2, batch_size=20, clip_norm=0)))
    with pytest.raises(DataError, match=r"client \d+ has a single sample"):
        run(
            small(
                data=Data(name="digits", max_samples=12), fleet=replace_fleet(clients=12, per_round=12), group_clients=4
            )
        )


def replace_fleet(**changes):
    return FleetSettings(**{"levels": "a", **changes})


@pytest.mark.slow
def test_a_resumed_run_keeps_its_groups(tmp_path):
    experiment = small(rounds=4, checkpoint_every=1, data=CLASSES, fleet=FLEET, group_clients=3)
    whole = run(experiment)

    class Enough(Exception):
        pass

    class Stop:
        def __getattr__(self, name):
            return lambda *_: None

        def on_round(self, record, state):
            if record["round"] == 2:
                raise Enough

    with pytest.raises(Enough):
        run(experiment, out=tmp_path / "run", callbacks=[Stop()])
    assert "group_clients = 3" in (tmp_path / "run" / "config.toml").read_text()
    assert same_state(resume(tmp_path / "run").state, whole.state)


@pytest.mark.parametrize("value", ["on", "0", "-3", "2.5"])
def test_a_group_that_cannot_be_is_refused(value):
    with pytest.raises(ConfigError, match="group_clients"):
        Experiment().with_settings([f"group_clients={value}"])
