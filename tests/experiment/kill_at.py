"""Kills a small run at file operations and lets it go on: python kill_at.py CASE FOLDER FIRST STEP.

PyTorch is imported once. This process runs the experiment once, to its end; then it forks a child for every kill, and
another that goes on with what is left. It never uses more than one thread, so a fork is all that a child needs. Prints
the number of file operations, and what went wrong, if anything did.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from functools import cache
from pathlib import Path

import sklearn.datasets
import torch
from torch import nn

from nestling.experiment import resume, run
from nestling.settings import Data, Evaluate, FleetSettings, Model, ServerSettings
from nestling.upload import Upload
from tests.run_cases import small

PUBLIC = Data(name="digits", max_samples=40, public_share=0.25)  # the server's samples without labels
_LIMIT = 120  # seconds for one child
_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, inputs):
        return inputs + self.second(self.first(inputs).relu())


def residual(classes=10):
    """A residual net that is quick to build and to train."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), Block(6), Block(6), nn.Linear(6, classes))


def case(name):
    settings = {
        "rounds": 2,
        "checkpoint_every": 1,
        "model": Model(name="tests.experiment.kill_at:residual"),
        "data": Data(name="digits", max_samples=30),
        "fleet": FleetSettings(clients=3, per_round=2, levels="a"),
        "evaluate": Evaluate(samples=10),
        "group_clients": "off",  # choosing takes longer than training here
    }
    changes = {
        "standalone": {"method": "standalone"},
        "nefl": {
            "method": "nefl",
            "fleet": FleetSettings(clients=2, per_round=2, levels="0.5-1"),
        },
        "fedmorph": {
            "method": "fedmorph",
            "options": {"every": 1, "ratio": 0.8, "epochs": 1},
            "data": Data(name="digits", max_samples=40, public_share=0.25),
        },
        "topk": {"upload": Upload(format="topk", fraction=0.2, feedback=True)},
        "feddf": {"method": "feddf", "data": PUBLIC, "options": {"steps": 2}},
        "ds-fl": {"method": "ds-fl", "data": PUBLIC},
        "fed-et": {"method": "fed-et", "data": PUBLIC, "options": {"steps": 2}},
        "lora": {"method": "lora", "model": Model(name="mlp", options={"widths": [6], "rank": 4})},
        "dp": {
            "method": "fedavg",
            "parts": "dp:clip=0.5:noise=1.0",
            "fleet": FleetSettings(clients=3, per_round=2, levels="a", sampling="poisson"),
        },
        "krum": {
            "method": "fedavg",
            "parts": "krum:1",
            "fleet": FleetSettings(clients=5, per_round=5, levels="a"),
        },
        "fan-in": {"fleet": FleetSettings(clients=3, per_round=3, levels="a-b"), "server": ServerSettings(fan_in=2)},
    }
    return small(**{**settings, **changes[name]})


def content(folder):
    """All files of a run directory, apart from the time and from events, which parts report again on resume."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    del files["seconds.json"]
    files.pop("events.jsonl", None)
    summary = json.loads(files["summary.json"])
    del summary["seconds"], summary["events"]
    return {**files, "summary.json": summary}


class Counter:
    """An audit hook that counts file operations in a folder, and kills its process before one of them."""

    def __init__(self, folder, fatal=None):
        self.folder, self.fatal, self.count = str(folder), fatal, 0

    def __call__(self, event, arguments):
        if event not in _OPERATIONS or not self._inside(arguments[0]):
            return
        self.count += 1
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def _inside(self, path):
        if isinstance(path, int):  # the handle of a lock, or of a folder whose entries are removed
            return True
        path = os.fsdecode(path)
        return path.startswith(self.folder) or not os.path.isabs(path)  # a name in a folder that is being removed


def child(action):
    """Do something in a child; return how it ended."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(_LIMIT)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def quicken():
    """Leave out what takes time and changes nothing here: what was written outlives a process without being forced."""
    os.fsync = lambda handle: None
    sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)


def main(name, place, first, step):
    torch.set_num_threads(1)
    quicken()
    experiment, whole, folder = case(name), place / "whole", place / "cut"
    run(experiment, out=whole)
    expected = content(whole)

    def begin(fatal):
        counter = Counter(folder, fatal)
        sys.addaudithook(counter)
        run(experiment, out=folder)
        (place / "count").write_text(str(counter.count))

    def go_on():
        if (folder / "config.toml").exists():
            resume(folder)
        else:
            run(experiment, out=folder)

    assert child(lambda: begin(None)) == 0
    operations = int((place / "count").read_text())
    wrong = []
    for fatal in range(first, operations + 1, step):
        shutil.rmtree(folder)
        ended = child(lambda fatal=fatal: begin(fatal)), child(go_on) if folder.exists() else child(lambda: begin(None))
        if ended != (-signal.SIGKILL, 0):
            wrong.append(f"operation {fatal}: the children ended with {ended}")
            folder.mkdir(exist_ok=True)
            continue
        actual = content(folder)
        wrong += [
            f"operation {fatal}: {file}" for file in {**expected, **actual} if expected.get(file) != actual.get(file)
        ]
    print(json.dumps({"operations": operations, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
