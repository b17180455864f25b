"""Secure aggregation in whole runs: what it goes with, near to the plain mean, the same bytes however a run is done."""

import json
import sys

import pytest

from nestling.errors import MethodError, NestlingError
from nestling.events import collect
from nestling.experiment import find, resume
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import make
from nestling.methods.messages import TrainJob
from nestling.methods.secure.secure_aggregation import SecureAggregation
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, Model
from tests.quick import mostly_slow
from tests.run_cases import outcome, small

PLAIN = ["model.options.norm=gn", "parts=secagg"]
TWO_LEVELS = FleetSettings(clients=8, per_round=8, levels="a-b")  # four of each


def secure(**changes):
    settings = {
        "parts": "secagg",
        "options": {"masked": False},
        "model": Model(name="cnn", options={"widths": [8, 16], "norm": "gn"}),
        "data": Data(name="digits", max_samples=200),
        "fleet": TWO_LEVELS,
        "evaluate": Evaluate(every=2, samples=100),
        "rounds": 2,
    }
    return small(**{**settings, **changes})


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    mostly_slow(
        [
            ("heterofl-digits", [], "a masked loss changes the rows of few clients"),
            ("heterofl-digits", ["options.masked=false", "model.options.norm=bn"], "norm statistics one by one"),
            ("heterofl-digits", ["upload.format=8-bit"], "set upload.format=dense, and parts=secagg:bits=16"),
            ("heterofl-digits", ["options.masked=false", "select_rows=true"], "rows that clients select"),
            (
                "fed-dropout-digits",
                ["options.masked=false"],
                "every client has a slice of its own: use secagg:cohort=union",
            ),
            ("nefl-digits", ["parts=secagg:cohort=union"], "use secagg:cohort=slice"),
            ("standalone-digits", [], "clients of standalone share nothing"),
            ("feddf-digits", [], "the server learns from each update"),
            ("ds-fl-digits", [], "clients of ds-fl share nothing"),
            ("fedavg-digits", ["parts=feddyn,secagg"], "secagg of fedavg merges otherwise: leave one out"),
            ("fedavg-digits", ["parts=median,secagg"], "one part with `aggregator`, not median and secagg"),
            ("fedavg-digits", ["parts=dp:noise=1,secagg"], "one part with `aggregator`, not dp and secagg"),
            (
                "fedavg-digits",
                ["fleet.clients=2", "fleet.per_round=2"],
                "cohorts of at least 3 clients, and a round has at most 2",
            ),
            ("fedavg-digits", ["server.fan_in=2"], "branches of clients are merged unmasked: set server.fan_in=0"),
            ("fedavg-digits", ["parts=secagg:bits=20"], "bits are 16, 32 or 64, not 20"),
            ("fedavg-digits", ["parts=secagg:bit=16"], "secagg has no setting 'bit=16'; did you mean 'bits'?"),
            ("fedavg-digits", ["parts=secagg:size=two"], "secagg's size cannot be 'two'"),
            ("fedavg-digits", ["parts=secagg:cohort=level"], "secagg's cohort cannot be 'level'"),
        ],
        quick=9,
    ),
)
def test_what_does_not_go_together_is_refused_in_one_sentence(preset, settings, words):
    with pytest.raises(NestlingError, match=words) as caught:
        simulate(Overrides(find(preset).with_settings([*PLAIN, *settings])))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [{"threshold": 0.5}, {"threshold": 1.1}, {"range": 0.0}, {"size": 2}, {"dropout": 1.0}, {"cohort": "all"}],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(MethodError, match="secagg's"):
        SecureAggregation(**settings)


@pytest.mark.parametrize(
    ("preset", "settings"),
    mostly_slow(
        [
            ("fedavg-digits", ["server.weighting=samples"]),
            ("fedprox-digits", []),
            ("heterofl-digits", ["options.masked=false", "server.optimizer=fedadam"]),
            (
                "heterofl-digits",
                ["options.masked=false", "fleet.devices=phone-low,laptop", "parts=secagg:cohort=union"],
            ),
            ("fedrolex-digits", ["options.masked=false", "fleet.assign=dynamic"]),
            ("fed-dropout-digits", ["options.masked=false", "parts=secagg:cohort=union"]),
            ("fjord-digits", []),
            ("nefl-digits", []),
            ("depthfl-digits", ["options.feddyn=0"]),
            ("lg-fedavg-digits", []),
            ("fedmorph-digits", []),
        ],
        quick=2,
    ),
)
def test_what_goes_together(preset, settings):
    simulation = simulate(Overrides(find(preset).with_settings([*PLAIN, *settings])))
    assert simulation.setup.method.overriding("upload_bytes")


def near(experiment, parts):
    """The largest difference of the models after two rounds with secure aggregation and without, and its last line."""
    with collect() as events:
        masked = run(experiment.with_settings([f"parts={parts}"]))
    plain = run(experiment.with_settings(["parts="]))
    setup = masked.simulation.setup
    differences = [(masked.state[name] - plain.state[name]).abs().max().item() for name in sorted(setup.parameters)]
    moved = [masked.state[name] - setup.model.state_dict()[name] for name in setup.parameters]
    assert max(change.abs().max().item() for change in moved) > 0.01
    return max(differences), masked.rounds[-1], plain.rounds[-1], [event.kind for event in events]


@pytest.mark.parametrize(
    ("changes", "parts"),
    mostly_slow(
        [
            ({"method": "heterofl"}, "secagg"),
            ({"method": "fedavg", "options": {}}, "secagg:size=4"),
            ({"method": "heterofl"}, "secagg:cohort=union:threshold=1"),
            ({"method": "fedavg", "options": {}}, "secagg:cohort=union:bits=64"),
            ({"method": "nefl", "options": {"variant": "W"}}, "secagg"),
        ],
        quick=1,
    ),
)
def test_a_run_is_that_of_the_plain_mean(changes, parts):
    difference, masked, plain, events = near(secure(**changes), parts)
    assert difference < 1e-4, "two rounds of training magnify what rounding changes in the first"
    assert masked["clients"] == plain["clients"] == 8
    assert masked["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-3)
    assert masked["secagg"]["unmerged_coordinates"] == 0
    assert events == []


def test_bytes_are_those_of_the_protocol():
    """One cohort of three: keys, shares, vectors of whole numbers and revealed shares, beside the slices down."""
    fleet = FleetSettings(clients=3, per_round=3, levels="a")
    result = run(secure(method="fedavg", options={}, fleet=fleet, rounds=1, evaluate=Evaluate(every=1, samples=50)))
    simulation, line = result.simulation, result.rounds[0]
    values = sum(simulation.setup.model.state_dict()[name].numel() for name in simulation.setup.parameters)
    keys, sealed, vector, reveal = 4 + 64, 2 * (4 + 82), 4 + 4 * values, 4 + 3 * (4 + 33)
    assert line["bytes_up"] == 3 * (keys + 4 + 32 + sealed + vector + reveal)
    assert line["bytes_down"] == 3 * (4 * values + 3 * keys + sealed + 3 * 4)
    (who, *_) = simulation.participants(1)
    plan = TrainJob(who, simulation.setup.submodel_plan(1.0), 1, 0.1).plan
    assert simulation.costs.bytes_up(plan) == 4 * values


def test_dropouts_are_survived_counted_and_reported(tmp_path):
    experiment = secure(parts="secagg:dropout=0.35", rounds=4, evaluate=Evaluate(every=4, samples=50))
    result = run(experiment, out=tmp_path / "run")
    lines = [line["secagg"] for line in result.rounds]
    assert all(line["clients"] == line["secagg"]["clients"] for line in result.rounds)
    assert all(line["dropped"] == 8 - line["clients"] for line in result.rounds)
    dropped = sum(line["dropped_cohorts"] for line in lines)
    assert 0 < dropped < sum(line["cohorts"] for line in lines), "some cohorts are too small then, and some are not"
    assert any(line["unmerged_coordinates"] > 0 for line in lines), "who dropped out with a wide cohort is missed"
    events = [json.loads(text) for text in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    reported = [event for event in events if event["kind"] == "cohort dropped"]
    assert len(reported) == dropped
    assert all("none of their updates is merged" in event["message"] for event in reported)
    lost = sum(event["count"] for event in events if event["kind"] == "client dropped")
    assert lost + sum(int(event["message"].split()[3]) for event in reported) == sum(
        line["dropped"] for line in result.rounds
    )


class Stop(Callback):
    def on_round(self, record, state):
        if record["round"] == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["secagg:dropout=0.2", "secagg:cohort=union:dropout=0.05"])
def test_workers_and_interruptions_change_no_byte(parts, tmp_path):
    experiment = secure(parts=parts, rounds=3, checkpoint_every=1, evaluate=Evaluate(every=3, samples=60))
    run(experiment, out=tmp_path / "whole")
    run(experiment.with_settings(["workers=2"]), out=tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop()])
    resume(tmp_path / "cut")
    wanted = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "cut") == wanted
    metrics, _, model = outcome(tmp_path / "two")
    assert (metrics, model) == (wanted[0], wanted[2])
    assert json.loads(metrics.splitlines()[0])["secagg"]["cohorts"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), [("heterofl", ["options.masked=false"]), ("fedavg", [])])
def test_digits_are_learned_as_well_as_without(method, options):
    fleet = ["fleet.levels=a-b", "fleet.clients=6", "fleet.per_round=6", "rounds=4", "evaluate.every=4"]
    narrow = ["model.options.norm=gn", "model.options.widths=[16, 32, 32]"]
    experiment = find(f"{method}-digits").with_settings([*narrow, *options, *fleet])
    plain, masked = (run(experiment.with_settings([f"parts={parts}"])) for parts in ("", "secagg"))
    learned, wanted = (result.summary["final"]["global_accuracy"] for result in (masked, plain))
    assert wanted > 0.7
    assert learned == pytest.approx(wanted, abs=0.02)


def test_without_the_package_it_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(
        MethodError, match=r"the part secagg needs the package 'cryptography': pip install 'nestling\[secagg\]'"
    ):
        simulate(Overrides(secure()))


def test_settings_survive_a_file_and_runs_may_get_more_rounds():
    experiment = Experiment().with_settings(["parts=secagg:cohort=union:size=16:threshold=0.8:range=4:bits=64"])
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    method = make("fedavg", {}, experiment.parts)
    assert method.parts[-1] == SecureAggregation("union", 16, 0.8, 4.0, 64)
    assert method.extendable


def test_the_mean_of_updates_is_taken_nowhere_before():
    """Clients that train as one group send an update each: a mean would have been seen by a worker."""
    experiment = secure(rounds=1, group_clients="auto", evaluate=Evaluate(every=1, samples=50))
    assert run(experiment).rounds[0]["secagg"]["clients"] == 8
