"""Runs that wait for nobody, or for the first: the same bytes again, whoever computes them, and what is refused."""

import pytest

from nestling.errors import ConfigError, NestlingError
from nestling.experiment import find, resume, run
from nestling.experiment.checkpoint import read, saved
from nestling.experiment.presets import PRESETS
from nestling.experiment.runner import check_start
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import names
from tests.experiment.test_resume import Stop
from tests.run_cases import WITH_PUBLIC, outcome
from tests.server.straggler_cases import straggling


@pytest.mark.parametrize(
    "own",
    [
        [],
        *(
            pytest.param(own, marks=pytest.mark.slow)
            for own in (
                ["method=lg-fedavg"],
                ["method=fedrolex", "server.optimizer=fedadam", "server.lr=0.01"],
                ["upload.format=topk", "upload.feedback=true"],
            )
        ),
    ],
)
def test_a_run_that_was_interrupted_goes_on_with_the_same_bytes(tmp_path, own):
    experiment = straggling(
        tmp_path, rounds=6, checkpoint_every=2, settings=[*own, "server.buffer=2", "evaluate.every=6"]
    )
    whole = run(experiment, out=tmp_path / "whole")
    assert max(line["staleness_max"] for line in whole.rounds[3:]) > 0
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(rounds=3)])
    state = read(tmp_path / "cut", whole.simulation.setup)
    left = whole.rounds[2]
    assert (len(state.flights.clients), len(state.flights.versions)) == (left["in_training"], left["models_kept"])
    assert left["in_training"] > 0
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_tensors_of_submodels_go_on_with_the_same_bytes(tmp_path):
    small = ["rounds=5", "evaluate.every=5", "evaluate.samples=50", "data.max_samples=300", "local.epochs=1"]
    small += ["model.options.widths=[4,4,8,8]", "group_clients=off", "checkpoint_every=2", "fleet.per_round=6"]
    buffer = ["fleet.devices=phone-low:1,phone-mid:1,laptop:1", "server.buffer=3"]
    experiment = find("nefl-digits").with_settings([*small, *buffer])
    whole = run(experiment, out=tmp_path / "whole")
    assert max(line["staleness_max"] for line in whole.rounds[3:]) > 0
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(rounds=3)])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_damaged_model_of_a_checkpoint_is_noticed(tmp_path):
    experiment = straggling(tmp_path, rounds=4, checkpoint_every=1, settings=["server.buffer=1", "evaluate.every=4"])
    whole = run(experiment, out=tmp_path / "run")
    last = saved(tmp_path / "run")[-1]
    path = next(last.glob("version-*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    assert read(tmp_path / "run", whole.simulation.setup).round == 3


@pytest.mark.slow
@pytest.mark.parametrize("own", [["server.buffer=2"], ["fleet.over_selection=1.5", "fleet.per_round=4"]])
def test_the_number_of_workers_changes_no_bit(tmp_path, own):
    for workers in (1, 2):
        experiment = straggling(tmp_path, rounds=4, settings=[*own, f"workers={workers}"])
        run(experiment, out=tmp_path / f"with-{workers}")
    one, two = (outcome(tmp_path / f"with-{workers}") for workers in (1, 2))
    assert one[0] == two[0]
    assert one[2] == two[2]


def test_a_round_merges_the_first_by_the_clock_and_counts_the_others(tmp_path):
    experiment = straggling(tmp_path, per_round=4, rounds=1, settings=["fleet.over_selection=1.5"])
    result = run(experiment, out=tmp_path / "run")
    (line,) = result.rounds
    assert (line["clients"], line["discarded"], line["dropped"]) == (4, 2, 0)
    simulation = result.simulation
    slow = [client for client in range(6) if simulation.devices.device_of(client).name == "slow"]
    assert len(slow) == 2  # of six, so these are the ones that the round did not wait for
    assert result.summary["clients_discarded"] == 2
    everybody = run(straggling(tmp_path, per_round=6, rounds=1))
    assert line["bytes_down"] == everybody.rounds[0]["bytes_down"]
    assert line["client_macs"] == everybody.rounds[0]["client_macs"]
    assert line["bytes_up"] < everybody.rounds[0]["bytes_up"]
    assert line["simulated_seconds"] < everybody.rounds[0]["simulated_seconds"]


REFUSED = {
    "server.buffer=4": "server.buffer needs fleet.devices",
    "fleet.over_selection=1.3": "fleet.over_selection needs fleet.devices",
    "server.buffer=4 fleet.devices=laptop fleet.deadline=9": "leave out fleet.deadline=9",
    "server.buffer=4 fleet.devices=laptop fleet.over_selection=1.3": "fleet.over_selection=1.3 has nothing to do",
    "server.buffer=4 fleet.devices=laptop fleet.sampling=poisson": "use fleet.sampling=fixed",
    "server.buffer=4 fleet.devices=laptop server.fan_in=2": "set server.fan_in=0",
    "server.buffer=4 server.staleness=-1": "server.staleness must be 0 or more",
    "fleet.over_selection=1.3 fleet.sampling=poisson": "use fleet.sampling=fixed",
    "fleet.over_selection=2.5": "would start more clients than fleet.clients=20",
    "server.buffer=4 fleet.devices=laptop parts=krum:1": "krum of heterofl needs updates that all began with one model",
    "server.buffer=4 fleet.devices=laptop method=fedavg parts=feddyn": "feddyn of fedavg needs updates",
    "server.buffer=2 fleet.devices=laptop parts=median": "median compares at least 3 updates",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_sentence(settings):
    with pytest.raises(ConfigError if "parts" not in settings else NestlingError) as refusal:
        check_start(find("heterofl-digits").with_settings(["options.masked=false", *settings.split()]))
    assert REFUSED[settings] in str(refusal.value)


# Methods whose server does more than merge: what it computes from updates of one model makes no sense of stale ones.
NOT_BUFFERED = {"fedmorph", "fedmorphprox", "feddf", "ds-fl", "fed-et", "lora"}


@pytest.mark.slow
def test_every_method_takes_stale_updates_or_is_refused_by_name():
    for method in names():
        settings = ["server.buffer=4", "fleet.devices=laptop", "local.epochs=1"]
        own = Overrides(find(f"{method}-digits").with_settings(settings))
        if method in NOT_BUFFERED:
            with pytest.raises(NestlingError, match=f"of {method.replace('prox', '')}.* needs updates that all began"):
                simulate(own)
        else:
            simulate(own)
    assert set(WITH_PUBLIC) <= NOT_BUFFERED


def test_the_presets_of_the_reproduction_differ_in_how_the_server_waits():
    waiting = PRESETS["waiting-digits"]()
    for name in ("over-selected-digits", "buffered-digits"):
        other = PRESETS[name]()
        assert (other.method, other.model, other.data, other.local, other.seed) == (
            *(waiting.method, waiting.model, waiting.data, waiting.local, waiting.seed),
        )
        assert other.fleet.devices == waiting.fleet.devices
