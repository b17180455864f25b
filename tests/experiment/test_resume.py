"""Runs that are killed, interrupted or broken go on as if nothing had happened, and lose no whole round."""

import multiprocessing
import os
import random
import signal
import sys
from contextlib import suppress

import pytest

from nestling.errors import NestlingError, TrainingError
from nestling.experiment import resume, run
from nestling.experiment.callback import Callback
from nestling.experiment.checkpoint import saved
from nestling.settings import Data, Evaluate, LocalTraining
from tests.processes import LIMIT, call, wait_until
from tests.quick import mostly_slow
from tests.run_cases import begin_or_go_on, outcome, small

FEWER = Data(name="digits", max_samples=200)


class Stop(Callback):
    """Raises after some rounds, or some clients."""

    def __init__(self, rounds=None, jobs=None, problem=KeyboardInterrupt):
        self.rounds, self.jobs, self.problem = rounds, jobs, problem

    def on_client(self):
        if self.jobs is not None:
            self.jobs -= 1
            if self.jobs < 0:
                raise self.problem

    def on_round(self, record, state):
        if self.rounds is not None and record["round"] >= self.rounds:
            raise self.problem


@pytest.fixture(scope="module", params=mostly_slow(["standalone", "fedrolex", "lg-fedavg", "fjord"], quick=2))
def whole(request, tmp_path_factory):
    """An experiment, and where it ran without being interrupted."""
    evaluate = Evaluate(every=2, samples=100)
    experiment = small(method=request.param, rounds=4, checkpoint_every=3, evaluate=evaluate, data=FEWER)
    folder = tmp_path_factory.mktemp(request.param) / "whole"
    run(experiment, out=folder)
    return experiment, folder


@pytest.mark.parametrize("jobs", mostly_slow([2, 7, 13], quick=1))
def test_interrupted_in_the_middle_of_a_round(tmp_path, whole, jobs):
    experiment, folder = whole
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(jobs=jobs)])
    done = jobs // 4  # whole rounds of four clients
    assert [path.name for path in saved(tmp_path / "cut")] == ([f"round-{done:06d}"] if done else [])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(folder)


def test_server_momenta_survive(tmp_path):
    server = type(small().server)(optimizer="fedadam", lr=0.01)
    experiment = small(rounds=4, server=server)
    run(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(rounds=2)])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def written(folder):
    """What changes when a run writes down a round."""
    with suppress(FileNotFoundError):
        status = (folder / "metrics.jsonl").stat()
        return status.st_size, status.st_mtime_ns


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    """Whoever goes on is killed in its own rounds, too; children of a server that has imported PyTorch begin soon."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nestling.experiment"])
    begin_or_go_on(tmp_path / "whole")
    cut = tmp_path / "cut"
    draw, kills = random.Random(5), 0
    for _ in range(30):
        before = written(cut)
        process = context.Process(target=begin_or_go_on, args=(cut,))
        process.start()
        wait_until(lambda: written(cut) != before or not process.is_alive())  # noqa: B023
        process.join(draw.uniform(0.0, 0.2))
        if process.is_alive():
            process.kill()
            kills += 1
        process.join(LIMIT)
        assert process.exitcode in (0, -signal.SIGKILL)
        if kills >= 4:  # enough: let it end
            resume(cut)
        if (cut / "summary.json").exists():
            break
    assert kills >= 2
    assert outcome(cut) == outcome(tmp_path / "whole")
    assert not list(cut.glob(".*"))


def test_a_loss_that_is_no_number_stops_with_the_last_good_round_saved(tmp_path):
    wild = small(
        local=LocalTraining(lr=1e30, clip_norm=0.0, epochs=1, batch_size=20, schedule="constant", warmup_rounds=0),
        rounds=3,
    )
    with pytest.raises(TrainingError, match=r"round 1, client \d+: the training loss is no longer a number"):
        run(wild, out=tmp_path / "wild")
    assert saved(tmp_path / "wild") == []
    with pytest.raises(TrainingError):
        run(small(rounds=3), out=tmp_path / "late", callbacks=[Stop(rounds=2, problem=TrainingError("no number"))])
    assert [path.name for path in saved(tmp_path / "late")] == ["round-000002"]


def test_a_run_that_is_over_tells_its_result_again(tmp_path):
    first = run(small(rounds=2), out=tmp_path / "run")
    before = outcome(tmp_path / "run")
    again = resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == before
    assert again.summary["final"] == first.summary["final"]


def test_metrics_beyond_the_checkpoint_are_played_again(tmp_path):
    experiment = small(rounds=4, checkpoint_every=2)
    run(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(rounds=2)])
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "half a li')  # what a kill in the middle of a write leaves
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_only_the_last_two_checkpoints_stay(tmp_path):
    run(small(rounds=5, checkpoint_every=1), out=tmp_path / "run")
    assert [path.name for path in saved(tmp_path / "run")] == ["round-000004", "round-000005"]


def test_no_run_is_written_over(tmp_path):
    run(small(rounds=1), out=tmp_path / "run")
    with pytest.raises(NestlingError, match=r"not empty.*nestling resume"):
        run(small(rounds=1), out=tmp_path / "run")
    with pytest.raises(NestlingError, match="is not a run directory"):
        resume(tmp_path)


def test_a_broken_checkpoint_is_named(tmp_path):
    run(small(rounds=1), out=tmp_path / "run")
    (saved(tmp_path / "run")[-1] / "figures.json").write_text("{")
    with pytest.raises(NestlingError, match=r"round-000001 cannot be read"):
        resume(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX limits")
def test_a_full_disk_loses_no_round(tmp_path):
    """A limit on file size stands for a disk that is full."""
    code = (
        "import resource, sys\n"
        "from tests.run_cases import small\n"
        "from nestling.experiment import run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "run(small(rounds=3, checkpoint_every=1), out=sys.argv[1])\n"
    )
    done = call([sys.executable, "-c", code, str(tmp_path / "run")])
    assert done.returncode != 0
    assert saved(tmp_path / "run") == []
    resume(tmp_path / "run")
    run(small(rounds=3, checkpoint_every=1), out=tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
