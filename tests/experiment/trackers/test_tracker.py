"""What all trackers have in common: settings, and evaluated rounds, each once, whatever happens to run or tracker."""

import json
import shutil

import pytest

from nestling.errors import NestlingError, RunFailed
from nestling.events import collect
from nestling.experiment import resume, run
from nestling.experiment.trackers import Tracker, make_tracker
from nestling.settings import Evaluate
from tests.experiment.test_resume import Stop
from tests.run_cases import tiny

EVERY = Evaluate(samples=20)


class Notebook(Tracker):
    """A tracker that keeps everything in a list."""

    name, package = "notebook", "json"

    def __init__(self, broken=()):
        super().__init__()
        self.lines, self._broken = [], broken

    def start(self, name, settings, identifier):
        if "start" in self._broken:
            raise ConnectionError("nobody is logged in")
        self.lines.append(("start", name, settings["local.lr"], identifier))
        return "number 7"

    def log(self, round, figures):
        if round in self._broken:
            raise ConnectionError("the server is gone")
        self.lines.append((round, figures))

    def finish(self, *, done):
        self.lines.append(("finish", done))


def test_settings_and_the_figures_of_evaluated_rounds(tmp_path):
    notebook = Notebook()
    result = run(tiny(rounds=4), out=tmp_path / "run", track=notebook, quiet=True)
    (_, name, lr, identifier), *rounds, end = notebook.lines
    assert (name, lr, identifier, end) == (
        "heterofl-digits",
        result.simulation.settings.local.lr,
        None,
        ("finish", True),
    )
    assert [round for round, _ in rounds] == [2, 4]
    figures, record = rounds[1][1], result.rounds[3]
    assert figures["evaluation/submodels/b/accuracy"] == record["evaluation"]["submodels"]["b"]["accuracy"]
    assert figures["bytes_up"] == record["bytes_up"]
    assert figures["levels/a"] == record["levels"]["a"]
    assert all(isinstance(value, float) for value in figures.values())


def test_a_resumed_run_goes_on_in_the_same_place_and_logs_no_round_twice(tmp_path):
    first, second = Notebook(), Notebook()
    settings = tiny(rounds=4, evaluate=EVERY, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", track=[first], callbacks=[Stop(rounds=2)], quiet=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round-000002")  # so that the second round is run again
    assert first.lines[-1] == ("finish", False)
    resume(tmp_path / "run", track=second, quiet=True)
    assert second.lines[0][-1] == "number 7"
    assert [line[0] for line in [*first.lines, *second.lines] if isinstance(line[0], int)] == [1, 2, 3, 4]
    third = Notebook()
    assert json.loads((tmp_path / "run" / "tracking.json").read_text()) == {"notebook": {"id": "number 7", "round": 4}}
    resume(tmp_path / "run", track=third, quiet=True)  # it is done
    assert third.lines == []


def test_a_tracker_that_fails_ends_no_run_but_one_that_cannot_start_does(tmp_path):
    notebook = Notebook(broken=[2])
    with collect() as events:
        run(tiny(rounds=4, evaluate=EVERY), out=tmp_path / "run", track=notebook, quiet=True)
    assert [line[0] for line in notebook.lines] == ["start", 1, 3, 4, "finish"]
    assert [event.kind for event in events] == ["tracker failed"]
    assert "notebook did not log round 2 (ConnectionError: the server is gone)" in events[0].message
    with pytest.raises(RunFailed, match=r"could not start \(ConnectionError: nobody is logged in\)"):
        run(tiny(rounds=4, evaluate=EVERY), out=tmp_path / "other", track=Notebook(broken=["start"]), quiet=True)


def test_a_damaged_list_of_tracked_runs_is_reported(tmp_path):
    run(tiny(rounds=1), out=tmp_path / "run", track=Notebook(), quiet=True)
    (tmp_path / "run" / "tracking.json").write_text("{")
    notebook = Notebook()
    with collect() as events:
        resume(tmp_path / "run", rounds=2, track=notebook, quiet=True)
    assert "tracking lost" in {event.kind for event in events}
    assert notebook.lines[0][-1] is None


def test_names_of_trackers_and_missing_packages():
    with pytest.raises(NestlingError, match="there is no tracker 'wand'; did you mean 'wandb'"):
        make_tracker("wand")

    class Missing(Notebook):
        name, package = "wandb", "no_such_package"

    with pytest.raises(NestlingError, match=r"tracking with wandb needs the package .*pip install 'nestling\[wandb\]'"):
        Missing()
