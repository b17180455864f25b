"""What goes wrong on a machine, or in a file, is one sentence: exit code 1 for a run that failed, 2 for bad input."""

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nestling.cli import main
from nestling.data import fetch
from nestling.errors import RunFailed
from nestling.experiment import runner as experiment
from nestling.experiment import sweep as many
from nestling.experiment.simulator import Simulator
from tests.cli.test_fuzz import BASE


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A current directory with the settings of a run that takes a moment."""
    (tmp_path / "base.toml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NESTLING_DATA", raising=False)
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def nestling(capsys, monkeypatch):
    """Run the program: its exit code, and its one sentence where that is not 0."""
    monkeypatch.delenv("NESTLING_DEBUG", raising=False)

    def call(*args):
        quiet = ["--quiet"] if args[0] in ("run", "resume", "compare") else []
        code = main([*args, *quiet])
        err = capsys.readouterr().err
        if code:
            assert err.startswith("error: ")
            assert err.count("\n") == 1
            assert "unexpected" not in err
        return code, err

    return call


# Directories


@pytest.mark.parametrize("out", ["file/run", "/proc/nestling", "x" * 300])
def test_a_directory_that_cannot_be_made(place, nestling, out):
    (place / "file").write_text("")
    code, err = nestling("run", "base.toml", "--out", out)
    assert code == 2
    assert "cannot be written" in err


def small_disk(place, options):
    """Mount a small or read-only disk, where we may; the test is skipped where we may not."""
    disk = place / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", disk]
    if not mount or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("disks cannot be mounted here")
    return contextlib.closing(_Mounted(disk))


class _Mounted:
    def __init__(self, path):
        self.path = path

    def close(self):
        subprocess.run(["umount", self.path], check=True)


def test_a_disk_that_becomes_full(place, nestling):
    with small_disk(place, "size=12k") as disk:
        code, err = nestling("run", "base.toml", "--out", str(disk.path / "run"))
    assert code == 1
    assert "is full (No space left on device): make room, and go on with 'nestling resume'" in err


def test_files_for_which_there_is_no_room(place, nestling):
    """Each is named, and nothing half-written stays."""
    nestling("run", "base.toml", "--out", "run")
    with small_disk(place, "size=4k") as disk:
        (disk.path / "others").write_bytes(bytes(4096))
        for command in (["report", "run"], ["export", "run"]):
            file = disk.path / f"{command[0]}.safetensors"
            code, err = nestling(*command, "--out", str(file))
            assert code == 1
            assert str(file) in err
            assert "No space left on device" in err
        assert [path.name for path in disk.path.iterdir()] == ["others"]


def test_a_disk_that_is_read_only(place, nestling):
    with small_disk(place, "ro") as disk:
        code, err = nestling("run", "base.toml", "--out", str(disk.path / "run"))
    assert code == 1
    assert "is read-only (Read-only file system)" in err


def test_a_full_disk_without_one(place, nestling, monkeypatch):
    """The same where nothing can be mounted: writing a checkpoint finds no space."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(experiment.checkpoint, "write", full)
    code, err = nestling("run", "base.toml", "--out", "run")
    assert code == 1
    assert "the disk of 'run' is full" in err


def test_a_run_directory_that_is_removed_meanwhile(place, nestling, monkeypatch):
    real = Simulator.run_round

    def run_round(*args):
        shutil.rmtree(place / "run")
        return real(*args)

    monkeypatch.setattr(Simulator, "run_round", run_round)
    code, err = nestling("run", "base.toml", "--out", "run")
    assert code == 1
    assert "the directory 'run' was removed while the run was writing to it" in err


def test_errors_that_are_not_of_the_disk_are_not_called_so(place, capsys, monkeypatch):
    def run_round(*args):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(Simulator, "run_round", run_round)
    assert main(["run", "base.toml", "--out", "run", "--quiet"]) == 2
    assert capsys.readouterr().err == "error: Connection reset by peer\n"


def test_output_that_cannot_be_written(place):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nestling", "list", "datasets"]
        root = str(Path(main.__globals__["__file__"]).parents[2])
        env = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: No space left on device"
    assert "Traceback" not in done.stderr


# Files of settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"\xff\xfe", "is not a text in UTF-8: byte 0 is wrong"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"rounds = " + b"9" * 5000, "not TOML"),
        (b"rounds = 0x" + b"f" * 20000, "rounds cannot be a number of thousands of digits"),
        (b"rounds == 3", "not TOML"),
        (b"[rounds]\nx = 1", "rounds cannot be {'x': 1}"),
        (b"model = 3", "model is a table of settings, not 3"),
    ],
)
def test_files_that_are_no_settings(place, nestling, text, sentence):
    (place / "bad.toml").write_bytes(text)
    code, err = nestling("run", "bad.toml", "--out", "run")
    assert code == 2
    assert "bad.toml" in err
    assert sentence in err
    assert not (place / "run").exists()


@pytest.mark.parametrize("text", [b"", b"\xff"])
def test_a_run_directory_whose_settings_are_gone(place, nestling, text):
    assert nestling("run", "base.toml", "--out", "run") == (0, "")
    (place / "run" / "config.toml").write_bytes(text)
    code, err = nestling("resume", "run")
    assert code == 2
    assert "config.toml" in err


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model.options.widths=[]", "'widths' of model 'cnn' cannot be []: it needs at least one size"),
        ("model.options.widths=gn", "'widths' of model 'cnn' cannot be 'gn'"),
        ("model.options.widths=[0]", "sizes are from 1 to 10,000,000"),
        ("model.options.classes=3", "the model has 3 outputs, too few for the 10 classes of digits"),
        ("local.batch_size=9223372036854775807", "local.batch_size must be at most 10,000,000"),
        ("local.epochs=9223372036854775807", "local.epochs must be at most 1,000,000"),
        ("evaluate.batch=9223372036854775807", "evaluate.batch cannot be"),
        ("rounds=1000000", "rounds cannot be 1000000"),
        ("seed=-1", "seed cannot be -1"),
        ("seed=99999999999999999999", "seed cannot be"),
        ("fleet.clients=99999999", "fleet.clients cannot be"),
        ("data.alpha=1e308", "data.alpha cannot be 1e+308"),
        ("local.lr=inf", "local.lr must be a finite number"),
        ("server.beta2=2", "server.beta2 must be from 0 to 1"),
        ("name=\udc80", "name cannot be"),
        ("data.dir=\0", "data.dir cannot be"),
        ("model.options.x=" + "[" * 3000, "nested too deep"),
    ],
)
def test_values_that_no_setting_takes(place, nestling, setting, sentence):
    code, err = nestling("run", "base.toml", setting, "--out", "run")
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["cost", "--model", "cnn", "--batch", "9223372036854775807"], "at most 10,000,000"),
        (["cost", "--model", "cnn", "--set", "widths="], "'widths' of model 'cnn' cannot be ''"),
        (["cost", "--model", "resnet18", "--set", "depths=1,1"], "as many depths as widths"),
        (["data", "show", "digits", "--partition", "dirichlet", "--alpha", "1e308"], "at most 1,000,000"),
        (["resume", "/dev/null"], "not a run directory"),
    ],
)
def test_other_commands(place, nestling, args, sentence):
    code, err = nestling(*args)
    assert code == 2
    assert sentence in err


# Another model or method


def test_another_model_starts_from_its_own_defaults(place, nestling):
    (place / "own.toml").write_text(BASE.replace("widths = [2, 4]", "widths = [2, 4], norm = 'gn'"))
    assert nestling("run", "own.toml", "model.options.widths=[3]", "model.name=mlp", "--out", "run") == (0, "")
    assert "\nnorm = " not in (place / "run" / "config.toml").read_text()
    code, err = nestling("run", "own.toml", "model.name=mlp", "model.options.norm=gn", "--out", "other")
    assert code == 2
    assert "model 'mlp' has no option 'norm': there are 'channels', 'classes', 'rank', 'size', 'widths'" in err


def test_another_method_starts_from_its_own_defaults(place, nestling):
    settings = "options = {step = 2}\n" + BASE.replace("heterofl", "fedrolex")
    (place / "rolex.toml").write_text(settings)
    assert nestling("run", "rolex.toml", "method=fedavg", "--out", "run") == (0, "")
    code, err = nestling("run", "rolex.toml", "method=fedavg", "options.step=3", "--out", "other")
    assert code == 2
    assert "fedavg has no option 'step'" in err


def test_the_same_model_keeps_its_options(place, nestling):
    assert nestling("run", "base.toml", "model.name=cnn", "--out", "run") == (0, "")
    assert (place / "run" / "config.toml").read_text().count("widths") == 1


# Runs that fail


def test_a_loss_that_is_no_number_is_a_failed_run(place, nestling):
    code, err = nestling("run", "base.toml", "local.lr=1e30", "local.clip_norm=0", "--out", "run")
    assert code == 1
    assert "number" in err


def test_a_client_with_a_single_sample_is_bad_input(place, nestling):
    """A norm over one value has no variance: other settings help."""
    settings = ["data.max_samples=3", "model.options.widths=[2, 2, 2, 2]", "--out", "run"]
    code, err = nestling("run", "base.toml", *settings)
    assert code == 2
    assert "has a single sample" in err


def test_nobody_online(place, nestling, caplog):
    """With one phone a round there are rounds of nobody: nobody has a model of its own before the first who comes."""
    settings = ["method=standalone", "fleet.devices=phone-low", "fleet.per_round=1", "evaluate.every=1", "rounds=2"]
    assert nestling("run", "base.toml", *settings, "--out", "run", "seed=0")[0] == 0
    assert "nobody takes part (none of those drawn is online): no update merges" in caplog.text
    assert json.loads((place / "run" / "summary.json").read_text())["final"]["global_accuracy"] is None
    assert nestling("report", "run")[0] == 0


MANY_LINES = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes, channels, size):
        super().__init__()
        self.first, self.head = torch.nn.Linear(channels * size * size, 4), torch.nn.Linear(4, classes)
    def forward(self, x):
        if self.training and not x.is_meta and type(x) is torch.Tensor and x.any():  # samples, and not an example
            raise RuntimeError("one" + chr(10) + chr(10) + "  two  " + chr(10) + "three")
        return self.head(self.first(x.flatten(1)).relu())
"""


def test_an_error_of_many_lines_from_a_client(place, nestling, monkeypatch):
    (place / "lines_net.py").write_text(MANY_LINES)
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    monkeypatch.delitem(sys.modules, "lines_net", raising=False)
    code, err = nestling("run", "base.toml", "model.name=lines_net:Net", "group_clients=off", "--out", "run")
    assert (code, err[:20]) == (1, "error: a client's wo")
    assert "a client's work failed: RuntimeError: one two three" in err


def test_no_memory(place, nestling, monkeypatch):
    def run_round(*args):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(Simulator, "run_round", run_round)
    code, err = nestling("run", "base.toml", "--out", "run")
    assert code == 1
    assert "there is not enough memory" in err


def test_no_network(place, nestling):
    pytest.importorskip("pooch")
    download = fetch.Download("http://127.0.0.1:9/digits.gz", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "entry", lambda name: type("Entry", (), {"inside": ("toy",), "downloads": (download,)}))
        code, err = nestling("data", "get", "mnist")
    assert code == 1
    assert "cannot be fetched into" in err
    assert "(Connection refused): check the network, or put the file there yourself" in err


@pytest.mark.parametrize(("setting", "code"), [("local.lr=1e30", 1), ("model.options.classes=3", 2)])
def test_comparisons_tell_failed_runs_from_bad_input(place, nestling, monkeypatch, setting, code):
    """The runs of a comparison have processes of their own; here they have not, for speed."""

    def run_sweep(experiments, processes, on_progress):
        failed = {}
        for folder, one in experiments.items():
            try:
                many._run_or_resume(folder, one.to_toml())
            except many.NestlingError as problem:
                failed[folder] = problem
        return failed

    monkeypatch.setattr(many, "run_sweep", run_sweep)
    actual, err = nestling("compare", "base.toml", setting, "local.clip_norm=0", "--out", "compared", "--no-report")
    assert actual == code
    assert "failed: " in err


def test_a_process_of_a_comparison_that_is_killed(place):
    def kill(*_):
        for child in multiprocessing.active_children():
            child.kill()

    failed = many.run_sweep({place / "run": many.Experiment.from_toml(BASE)}, on_progress=kill)
    assert isinstance(failed[place / "run"], RunFailed)
    assert "was killed by SIGKILL" in str(failed[place / "run"])
