import json
import sys

import pytest

from nestling.cli import main
from tests.flower.federation import Federation, needs_flower
from tests.processes import call


def test_a_new_app_has_few_short_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "myapp", "--flower"]) == 0
    files = [path for path in (tmp_path / "myapp").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        *("README.md", "pyproject.toml", "__init__.py", "data.py", "model.py", "experiment.toml", "test_myapp.py"),
        *("server_app.py", "client_app.py"),
    }
    assert all(len(path.read_text().splitlines()) <= 45 and "NAME" not in path.read_text() for path in files)
    assert "flwr run . --stream" in capsys.readouterr().out
    assert main(["new", "myapp"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["My-App", "class", "9lives", ""])
def test_names_that_python_cannot_import_are_refused(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 2
    assert "an app cannot be called" in capsys.readouterr().err


@pytest.mark.slow
@needs_flower
def test_flower_accepts_a_new_app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "myapp", "--flower"]) == 0
    federation = Federation(tmp_path / "federation")
    code, said = federation.flwr("build", "--app", str(tmp_path / "myapp"))
    assert code == 0, said
    assert list(federation.folder.glob("me.myapp.*.fab"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_flower
def test_flower_runs_a_new_app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "myapp", "--flower"]) == 0
    keys = f'out="{tmp_path / "run"}" settings="rounds=1"'
    three = "num-supernodes=3 client-resources-num-cpus=1"
    with Federation(tmp_path / "federation", simulation=True) as federation:
        federation.superlink()
        said = federation.complete(tmp_path / "myapp", "--federation-config", three, "-c", keys)
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["clients"] == 3, said
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_new_app_passes_its_tests_and_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "myapp"]) == 0
    folder = tmp_path / "myapp"
    call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, check=True)
    words = [sys.executable, "-m", "nestling", "run", "myapp/experiment.toml", "rounds=1", "--out", "run"]
    call(words, cwd=folder, check=True)
    assert (folder / "run" / "summary.json").exists()
