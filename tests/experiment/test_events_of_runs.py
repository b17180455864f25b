"""What the machine does to a run changes no number of it, is kept in its directory, and is counted in its summary."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from nestling.client.worker import Worker
from nestling.errors import ConfigError, RunFailed
from nestling.events import Event, EventLog, forward, report
from nestling.experiment import resume, run
from nestling.experiment.callback import Callback
from nestling.experiment.checkpoint import saved
from nestling.methods import make
from nestling.settings import Evaluate, Experiment, FleetSettings, read
from tests.run_cases import Deadly, Fatal, outcome, small

SHORT = {"rounds": 2, "evaluate": Evaluate(every=1, samples=100, norm_batch=50), "group_clients": "off"}
experiment_module = sys.modules["nestling.experiment.runner"]


def events(folder):
    return [json.loads(line) for line in Path(folder, "events.jsonl").read_text().splitlines()]


def kinds(folder):
    return [(event["round"], event["kind"]) for event in events(folder)]


@pytest.mark.slow
def test_a_lost_worker_is_told_and_changes_no_byte(tmp_path, caplog):
    method = make("heterofl").with_parts(Deadly(str(tmp_path / "died")))
    run(small(**SHORT), method=make("heterofl"), out=tmp_path / "one")
    run(small(**SHORT, workers=2), method=method, out=tmp_path / "two")
    assert (tmp_path / "died").exists()
    assert outcome(tmp_path / "one")[0] == outcome(tmp_path / "two")[0]
    assert outcome(tmp_path / "one")[2] == outcome(tmp_path / "two")[2]
    assert kinds(tmp_path / "two") == [(1, "worker lost")]
    assert "was killed by SIGKILL while it did job" in events(tmp_path / "two")[0]["message"]
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["events"] == {"worker lost": 1}
    assert (summary["workers_lost"], summary["clients_dropped"]) == (1, 0)
    assert [record.getMessage()[:9] for record in caplog.records if record.name == "nestling"] == ["round 1: "]
    quiet = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert (quiet["events"], quiet["workers_lost"]) == ({}, 0)
    assert not (tmp_path / "one" / "events.jsonl").exists()


@pytest.mark.slow
def test_parts_of_an_evaluation_that_every_worker_is_lost_with_are_done_in_the_main_process(tmp_path, monkeypatch):
    few = {**SHORT, "rounds": 1, "fleet": FleetSettings(clients=2, per_round=1, levels="a")}
    few["evaluate"] = Evaluate(every=1, samples=50, norm_clients=1)
    run(small(**few), out=tmp_path / "one")
    fatal = partial(Fatal, kinds=("NormStatisticsJob", "TestJob"))
    monkeypatch.setattr(experiment_module, "worker_factory", lambda overrides, simulation: partial(fatal, overrides))
    run(small(**few, workers=2), out=tmp_path / "two")
    one, two = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    assert (one[0], one[2]) == (two[0], two[2])
    assert (
        kinds(tmp_path / "two")
        == [
            *[(1, "worker lost")] * 2,
            (1, "job moved to the main process"),
        ]
        * 2
    )


def test_whole_rounds_are_saved_before_a_job_that_may_end_the_main_process(tmp_path, monkeypatch):
    """Private tensors of the round that is under way must survive it."""
    settings = small(
        **SHORT, method="lg-fedavg", checkpoint_every=100, fleet=FleetSettings(clients=3, per_round=3, levels="a")
    )
    run(settings, out=tmp_path / "whole")
    seen = []

    class Moved(Callback):
        """Plays a job that is moved to the main process in the middle of the second round."""

        def __init__(self):
            self.jobs = 0

        def on_client(self):
            self.jobs += 1
            if self.jobs == 5:  # the second of the three clients
                hook()
                seen.extend(path.name for path in saved(tmp_path / "run"))

    hooks = []
    engine = experiment_module._engine
    monkeypatch.setattr(experiment_module, "_engine", lambda *given: hooks.append(given[2]) or engine(*given))

    def hook():
        hooks[0]()

    run(settings, out=tmp_path / "run", callbacks=[Moved()])
    assert seen == ["round-000001"]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_missed_deadline_drops_clients_and_is_told(tmp_path, caplog):
    fleet = FleetSettings(clients=8, per_round=8, devices="phone-low:4,laptop:4", deadline=0.1)
    with caplog.at_level("INFO", "nestling"):
        result = run(small(**SHORT, fleet=fleet), out=tmp_path / "run")
    dropped = [line["dropped"] for line in result.rounds]
    assert sum(dropped) > 0
    assert result.summary["clients_dropped"] == result.summary["events"]["client dropped"] == sum(dropped)
    assert result.summary["workers_lost"] == 0
    assert "clients missed the deadline of 0.1 s" in caplog.records[0].getMessage()
    assert caplog.records[0].levelname == "INFO"


class Noisy(Callback):
    """Reports an event in every round, and stops the run after some of them."""

    def __init__(self, stop=None):
        self.stop, self.jobs = stop, 0

    def on_start(self, simulation, state):
        self.per_round = simulation.settings.fleet.per_round

    def on_client(self):
        if self.jobs % self.per_round == 0:
            report("kernel slow", f"job {self.jobs}")
        self.jobs += 1
        if self.jobs == self.stop:
            raise KeyboardInterrupt


def test_a_resumed_run_counts_each_round_once(tmp_path):
    settings = small(**{**SHORT, "rounds": 3})
    run(settings, out=tmp_path / "whole", callbacks=[Noisy()])
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "cut", callbacks=[Noisy(stop=6)])  # in the second round, which has its event
    assert kinds(tmp_path / "cut") == [(1, "kernel slow"), (2, "kernel slow")]
    with (tmp_path / "cut" / "events.jsonl").open("a") as file:
        file.write('{"round": 2, "kind": "worker lo')  # what a kill in the middle of a write leaves
    resumed = resume(tmp_path / "cut", callbacks=[Noisy()])
    assert kinds(tmp_path / "cut") == [(1, "kernel slow"), (2, "kernel slow"), (3, "kernel slow")]
    assert resumed.summary["events"] == {"kernel slow": 3}


def test_events_before_there_is_a_directory_are_kept(tmp_path):
    log = EventLog(None)
    with log.active():
        report("kernel missing", "plain PyTorch does the work")
        log.open(tmp_path, 0)
        report("kernel slow", "so it is", count=3)
    assert kinds(tmp_path) == [(0, "kernel missing"), (0, "kernel slow")]
    assert log.totals() == {"kernel missing": 1, "kernel slow": 3}


def test_totals_by_level(tmp_path):
    log = EventLog(tmp_path)
    with log.active():
        forward([Event("kernel slow", "…", 20), Event("worker lost", "…")])
    assert log.totals(30) == {"worker lost": 1}
    assert log.totals(20) == {"kernel slow": 1, "worker lost": 1}


def test_no_memory_anywhere_is_one_sentence(monkeypatch):
    def starve(*_):
        raise MemoryError("4 TB")

    monkeypatch.setattr(Worker, "_answer", starve)
    with pytest.raises(RunFailed, match=r"there is not enough memory \(MemoryError: 4 TB\): use fewer workers"):
        run(small(**SHORT))


# ---- settings


def test_more_workers_than_the_machine_can_carry_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(ConfigError, match="workers=100000 are too many for this machine: at most 32, 16 per core"):
        run(small(workers=100000), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../evil", "without / and"),
        ("a/b", "without / and"),
        ("a\\b", "without / and"),
        ("/etc", "without / and"),
        (".hidden", "begin with a dot"),
        ("..", "begin with a dot"),
        ("a\0b", "which no text may hold"),
        ("a\nb", "control characters"),
        ("a\x9bb", "control characters"),
        ("\udcff", "which no text may hold"),
        ("ä" * 101, "has 202 bytes: at most 200"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name, words):
    with pytest.raises(ConfigError) as caught:
        read({"name": name})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_every_language_are_fine():
    for name in ("heterofl digits", "прогон-1", "ä" * 100, "a..b", "seed=3, two"):
        assert Experiment().with_settings([f"name={name!r}"]).name == name


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_time_limits_that_cannot_be_are_refused(value):
    with pytest.raises(ConfigError, match="worker_timeout"):
        Experiment().with_settings([f"worker_timeout={value}"])


def test_the_time_limit_reaches_the_engine(monkeypatch):
    seen = {}
    engine = experiment_module.LocalEngine
    monkeypatch.setattr(
        experiment_module, "LocalEngine", lambda *given, **named: seen.update(named) or engine(*given, **named)
    )
    run(small(**{**SHORT, "rounds": 1}, worker_timeout=77.5))
    assert seen["timeout"] == 77.5
