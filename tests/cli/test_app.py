"""The command line, in-process where that is enough and as a real program where it is not."""

import json
import os
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

import nestling
from nestling.amounts import BYTES, amount
from nestling.cli import app as program
from nestling.cli import main, screen
from nestling.cli.list import KINDS
from nestling.cli.target import load, parse_options
from nestling.errors import ModelError, NestlingError
from nestling.fleet import LEVELS, parse_level
from tests.processes import call

CNN = {"a": 1_556_874, "b": 391_370, "c": 98_922, "d": 25_274, "e": 6_594}

FACTORIES = '''
import os, signal, sys
import torch
from torch import nn

print("the module says hello")
THING = 3
MODEL = nn.Linear(4, 2)
X = torch.randn(2, 4)

class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, x, shift=None):
        return self.last(self.first(x).relu()) + (0 if shift is None else shift[:, :1])

class Own(Net):
    example_inputs = {"x": X}

class Silent(Net):
    """Nothing can be proved of it."""
    def forward(self, x):
        return self.last(self.first(x)) * 0

class Written(Net):
    """A size that cutting cannot reach."""
    def forward(self, x):
        return self.last(self.first(x).view(-1, 8))

def tensor(**options): print("making"); return Net(**options), X
def positional(): return Net(), (X, X)
def keywords(): return Net(), {"x": X, "shift": X}
def silent(): return Silent(), X
def written(): return Written(), X
def raises(): raise RuntimeError("the disk\\nis full")
def leaves(): sys.exit(0)
def interrupted(): os.kill(os.getpid(), signal.SIGINT); signal.pause()
def nothing(): return None
def alone(): return Net()
def swapped(): return X, Net()
def listed(): return Net(), [X]
class holder:
    make = staticmethod(tensor)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of factories; what is imported from it is forgotten afterwards."""
    (tmp_path / "birds.py").write_text(FACTORIES)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "quits.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("birds", "broken", "quits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    sys.modules.pop("birds", None)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run the program in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("NESTLING_DEBUG", raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        code = main(args)
        return (code, *capsys.readouterr())

    return call


def shell(*args: str, cwd: Path | None = None, **extra: str) -> CompletedProcess[str]:
    """Run ``python -m nestling`` as a program of its own."""
    colours = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "NESTLING_DEBUG")
    env = {name: value for name, value in os.environ.items() if name not in colours}
    path = os.pathsep.join([str(Path(nestling.__file__).parents[1]), env.get("PYTHONPATH", "")])
    env |= {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"} | extra
    return call([sys.executable, "-m", "nestling", *args], cwd=cwd, env=env)


def one_sentence(err: str) -> str:
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


# The package and the program's start


@pytest.mark.parametrize("args", [["--help"], ["--version"], [], ["cost", "--help"], ["list", "nothing"]])
def test_torch_is_not_imported_before_it_is_needed(args):
    code = f"import sys; from nestling.cli import main; main({args!r}); print(sorted(sys.modules))"
    done = call([sys.executable, "-c", code], check=True)
    modules = done.stdout.splitlines()[-1]
    assert "'nestling.cli.app'" in modules
    assert "'torch'" not in modules
    assert "'numpy'" not in modules


def test_the_package_gives_every_name_it_promises():
    for name in nestling.__all__:
        assert not isinstance(getattr(nestling, name), types.ModuleType), name
        assert name in dir(nestling)
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        nestling.chek  # noqa: B018


def test_version_and_help():
    runner = CliRunner()
    assert runner.invoke(program.app, ["--version"]).output == f"nestling {nestling.__version__}\n"
    for args in (["--help"], ["list", "--help"], ["cost", "--help"], ["check", "-h"]):
        result = runner.invoke(program.app, args)
        assert result.exit_code == 0
        command = " ".join(["nestling", *args[:-1]])
        assert re.search(rf"Examples:\n +{command} \S", result.output), result.output
    assert runner.invoke(program.app, []).output == runner.invoke(program.app, ["--help"]).output


def test_module_and_program_are_the_same():
    assert shell("--version").stdout == f"nestling {nestling.__version__}\n"
    assert shell().returncode == 0


# Errors


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cots"], "No such command 'cots'"),
        (["cost"], "Missing option '--model'"),
        (["cost", "--modl", "cnn"], "--model"),
        (["cost", "--model", "cnn", "--batch", "many"], "--batch"),
        (["cost", "--model", "cnn", "--batch", "0"], "at least 1 sample, not 0"),
        (
            ["cost", "--model", "cn"],
            "no model 'cn', nor is that of the form package.module:factory; did you mean 'cnn'",
        ),
        (["cost", "--model", "ResNet_18x"], "'resnet18'"),
        (["cost", "--model", "cnn", "--levels", "a,f"], "no level 'f': use a, b, c, d, e"),
        (["cost", "--model", "cnn", "--levels", "a,,b"], "no level ''"),
        (["cost", "--model", "cnn", "--levels", "1.5"], "at most 1"),
        (["cost", "--model", "cnn", "--set", "classes"], "--set key=value"),
        (["cost", "--model", "cnn", "--set", "clases=3"], "did you mean 'classes'"),
        (["cost", "--model", "cnn", "--set", "norm=xx"], "no norm 'xx'"),
        (["cost", "--model", "cnn", "--set", "classes=many"], "'classes' of model 'cnn' cannot be 'many'"),
        (["list"], "KIND"),
        (["list", "modles"], "no list of 'modles'; did you mean 'models'"),
        (["list", "birds"], "there are 'methods', 'models'"),
        (["check"], "TARGET"),
        (["check", "cnnn"], "did you mean 'cnn'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run, args, words):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert words in one_sentence(err)
    assert "None" not in err


def test_the_unexpected_is_exit_code_1_and_a_traceback_only_on_demand(run, monkeypatch):
    def broken():
        raise RuntimeError("out of\nwood [red]")

    monkeypatch.setitem(KINDS, "models", replace(KINDS["models"], rows=broken))
    code, out, err = run("list", "models")
    assert (code, out) == (1, "")
    assert "unexpected RuntimeError: out of wood [red]" in one_sentence(err)
    for args in (["--debug", "list", "models"], ["list", "models", "--debug"]):
        assert "Traceback" in run(*args)[2]
    monkeypatch.setenv("NESTLING_DEBUG", "1")
    assert "Traceback" in run("list", "models")[2]
    monkeypatch.setenv("NESTLING_DEBUG", "0")
    one_sentence(run("list", "models")[2])


def test_interrupting_is_quiet(folder):
    done = shell("check", "birds:interrupted", cwd=folder)
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr.split() == ["the", "module", "says", "hello"]


def test_bad_input_as_a_program():
    done = shell("list", "no-such-kind")
    assert (done.returncode, done.stdout) == (2, "")
    one_sentence(done.stderr)


# list


def test_list_models(run):
    code, out, _ = run("list", "models", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["cnn"] == {
        "name": "cnn",
        "parameters": CNN["a"],
        "input": [1, 28, 28],
        "about": rows["cnn"]["about"],
    }
    code, out, _ = run("list", "models")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["name", "parameters", "input", "about"]
    assert len(lines) == 2 + len(rows)  # nothing folds where there is no terminal
    assert any(line.startswith("cnn ") and "1,556,874" in line and "1×28×28" in line for line in lines)


# cost


@pytest.mark.slow
def test_cost_of_the_papers_net_as_a_program():
    done = shell("cost", "--model", "cnn", "--levels", "a,b,c,d,e", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert {row["level"]: row["parameters"] for row in rows} == CNN
    assert [row["width"] for row in rows] == list(LEVELS.values())
    for row in rows:
        assert {"level", "parameters", "bytes", "macs", "width", "share", "activations", "memory", "batch"} == set(row)
        assert all(type(row[key]) is int for key in ("parameters", "bytes", "macs", "activations", "memory", "batch"))
    assert rows[0]["macs"] == 39_974_912
    assert rows[0]["batch"] == 32


def test_cost_table_is_plain_where_there_is_no_terminal(run, monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    code, out, err = run("cost", "--model", "mlp", "--levels", "a,0.3")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    header, _, first, second, caption = out.splitlines()
    assert header.split() == ["level", "width", "parameters", "share", "size", "MACs", "activations", "memory"]
    assert first.split()[:4] == ["a", "1", "199,210", "100.00%"]
    assert second.split()[:2] == ["0.3", "0.3"]
    assert "batch 32" in caption


def test_macs_are_those_of_one_sample_and_memory_those_of_the_batch(run):
    small, large = (
        json.loads(run("cost", "--model", "mlp", "--levels", "b", "--batch", batch, "--json")[1])[0]
        for batch in ("2", "64")
    )
    assert small["macs"] == large["macs"]
    assert small["memory"] < large["memory"]
    assert (small["batch"], large["batch"]) == (2, 64)


def test_cost_takes_options_and_widths(run):
    code, out, _ = run("cost", "--model", "mlp", "--levels", "a, 1/3", "--set", "classes=100", "--json")
    assert code == 0
    whole, third = json.loads(out)
    assert whole["parameters"] == 199_210 + 90 * 201
    assert third["width"] == pytest.approx(1 / 3)
    assert third["share"] == third["parameters"] / whole["parameters"]


def test_cost_of_a_users_own_model(run, folder):
    code, out, err = run(
        "cost", "--model", "birds:tensor", "--levels", "a,b", "--batch", "4", "--set", "hidden=16", "--json"
    )
    assert code == 0
    assert [row["parameters"] for row in json.loads(out)] == [16 * 5 + 17 * 2, 8 * 5 + 9 * 2]
    assert err.split("\n")[:2] == ["the module says hello", "making"]


def test_levels():
    assert [parse_level(level).ratio for level in "abcdE"] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert parse_level("0.3").ratio == 0.3
    for bad in ("nan", "inf", "0", "-1", "1/0", "b b"):
        with pytest.raises(NestlingError, match="there is no level"):
            parse_level(bad)


# check


@pytest.mark.slow
def test_check_of_a_users_own_model_as_a_program(folder):
    done = shell("check", "birds:tensor", "--json", cwd=folder)
    assert done.returncode == 0
    assert done.stderr.split("\n")[:2] == ["the module says hello", "making"]  # stdout holds JSON alone
    proof = json.loads(done.stdout)
    assert proof["ok"] is True
    assert 0.9 < proof["coverage"] < 1
    assert proof["axes"] == [{"name": "first", "size": 8, "tensors": 3, "ok": True, "note": ""}]
    assert {row["why"] for row in proof["frozen"]} == {"output of the model", "input of the model"}
    assert [row["name"] for row in proof["submodels"]] == ["smallest", "half", "three quarters"]
    assert all(row["ok"] and row["parameters"] > 0 for row in proof["submodels"])


def test_check_table(run):
    code, out, err = run("check", "mlp")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["axis", "units", "tensors", "proof"]
    assert lines[-1] == "coverage 99.99% of the parameters; ok: all 2 axes hold and all 3 sub-models train"
    assert "output of the model" in out
    assert "89,610  trains" in out


@pytest.mark.parametrize("factory", ["birds:positional", "birds:keywords", "birds:Own", "birds:holder.make"])
def test_check_takes_every_kind_of_factory(run, folder, factory):
    code, out, _ = run("check", factory, "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True


@pytest.mark.parametrize("factory", ["birds:silent", "birds:written"])
def test_check_finds_what_is_wrong(run, folder, factory):
    code, out, _ = run("check", factory, "--json")
    proof = json.loads(out)
    rows = proof["axes"] + proof["submodels"]
    assert (code, proof["ok"]) == (1, False)
    assert [row["ok"] for row in rows] == [not row["note"] for row in rows]
    code, out, _ = run("check", factory)
    assert code == 1
    assert re.search(r"not ok: .*\d of \d (axes|sub-models) failed$", out.splitlines()[-1])
    for row in rows:
        assert row["note"] in out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.at_all:make", "there is no module 'nowhere.at_all' in "),
        ("broken:make", "'broken' cannot be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("quits:make", "'quits' cannot be imported: SystemExit: 0"),
        ("birds.py:tensor", "write birds:tensor"),
        ("./sub/birds.py:tensor", "write sub.birds:tensor"),
        (":tensor", "write package.module:factory"),
        ("birds:", "write package.module:factory"),
        ("birds:tenser", "has no factory 'tenser'; did you mean 'tensor'"),
        ("birds:THING", "is of type int, which is not a factory: a factory takes no arguments and returns (model, ex"),
        ("birds:MODEL", "is of type Linear, which is not a factory"),
        ("birds:raises", "the factory 'birds:raises' failed: RuntimeError: the disk is full"),
        ("birds:leaves", "failed: SystemExit: 0"),
        ("birds:nothing", "returned None: a factory takes"),
        ("birds:alone", "returned an object of type Net: a factory takes"),
        ("birds:swapped", "returned a tuple (Tensor, Net)"),
        ("birds:listed", "gave an object of type list as its example"),
        ("birds:X.nope", "has no factory 'X.nope'"),
    ],
)
def test_check_says_in_one_sentence_why_a_target_is_not_accepted(run, folder, target, words):
    code, out, err = run("check", target)
    assert (code, out) == (2, "")
    assert words in one_sentence(err.removeprefix("the module says hello\n"))


def test_a_model_that_cannot_run_on_its_example_is_bad_input(run, folder):
    (folder / "birds.py").write_text("import torch\ndef make(): return torch.nn.Linear(4, 2), torch.zeros(1, 5)\n")
    code, _, err = run("check", "birds:make")
    assert code == 2
    assert "could not be run on the example" in one_sentence(err)


# What the commands share


def test_options():
    assert parse_options(["a=1", "b=1e-3", "c=True", "d=gn", "e=1,2", "f=3,", "g=x=y", "a=2"]) == {
        "a": 2,
        "b": 0.001,
        "c": True,
        "d": "gn",
        "e": (1, 2),
        "f": (3,),
        "g": "x=y",
    }
    for bad in ("a", "=1", "a b=1"):
        with pytest.raises(ModelError, match="--set key=value"):
            parse_options([bad])


def test_models_are_made_without_memory_where_shapes_suffice():
    target = load("vit-b16", {}, shapes_only=True)
    assert {parameter.device.type for parameter in target.model.parameters()} == {"meta"}
    assert target.args[0].device.type == "cpu"


def test_tables_keep_long_names_and_numbers_whole(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    name = "encoder." * 20 + "[end]"
    screen.print_table({"axis": "left", "units": "right"}, [[name, "1,234,567"]])
    assert capsys.readouterr().out.splitlines() == [name, "    units 1,234,567"]


@pytest.mark.parametrize(
    ("count", "decimal", "binary"),
    [
        (0, "0", "0 B"),
        (999, "999", "999 B"),
        (1_000, "1.00 k", "0.98 KiB"),
        (999_499, "999 k", "976 KiB"),
        (999_500, "1.00 M", "976 KiB"),
        (7_486_722_724, "7.49 G", "6.97 GiB"),
        (10**20, "100 E", "88818 PiB"),
    ],
)
def test_amounts_have_three_digits_and_a_unit(count, decimal, binary):
    assert amount(count) == decimal
    assert amount(count, BYTES) == binary


def test_methods_are_listed_with_what_they_do_and_explained_with_their_options(run):
    code, out, _ = run("list", "methods")
    assert code == 0
    assert re.search(r"^fedavg +FedAvg: everybody trains the whole model\. *$", out, re.M)
    code, out, _ = run("list", "methods", "fedprox")
    assert "options.mu = 0.01   (a number)\n    μ, the weight of the proximal term (Eq. 2).\n" in out
    (row,) = json.loads(run("list", "methods", "fedprox", "--json")[1])
    assert (row["options"], row["described_options"][0]["default"]) == ("mu=0.01, masked=False", 0.01)


@pytest.mark.parametrize("kind", ["datasets", "devices"])
def test_every_list_begins_with_names_and_is_json_on_demand(run, kind):
    code, out, err = run("list", kind, "e")
    assert (code, err) == (0, "")
    code, printed, _ = run("list", kind, "e", "--json")
    rows = json.loads(printed)
    assert all(row["name"] for row in rows)
    assert [line.split()[0] for line in out.splitlines()[2:]] == [row["name"] for row in rows]
