"""`nestling demo`: what it prints is what its runs say, here and from a wheel in a fresh environment."""

import importlib.util
import json
import os
import re
import site
import sys
from pathlib import Path

import pytest

from nestling.cli import demo, main
from nestling.errors import NestlingError
from tests.processes import call

ROOT = Path(__file__).parents[2]
SHORT = ["rounds=2", "local.epochs=1", "data.max_samples=400"]
pytest.importorskip("plotly", reason="the demo needs nestling[demo]")


def judge(out: str, folder: Path) -> None:
    """The table, the sentences and the page are those of the runs in a folder."""
    summaries = {name: json.loads((folder / name / "seed-0/summary.json").read_text()) for name in demo.PRESETS}
    for name, summary in summaries.items():
        assert re.search(rf"^{name} .*{100 * summary['final']['global_accuracy']:.1f} %", out, re.M), name
    mixed = [name for name in demo.PRESETS if name not in (demo.LARGE, demo.SMALL)]
    best = max(mixed, key=lambda name: summaries[name]["final"]["mean_submodel"])
    final, large = summaries[best]["final"], summaries[demo.LARGE]
    sent, whole = (one["bytes_down"] + one["bytes_up"] for one in (summaries[best], large))
    said = " ".join(out.split())
    assert f"{best} reaches {final['global_accuracy']:.1%}: " in said
    assert f"the largest model ({large['final']['global_accuracy']:.1%}), for {sent / whole:.0%} of its bytes" in said
    assert "80% of its devices could never carry that model" in said
    levels = summaries[best]["levels"]
    assert f"from {levels['e']['parameters']:,} to {levels['a']['parameters']:,} parameters" in said
    assert f"the worst reaches {final['worst_submodel']:.1%}" in said
    assert (folder / "report.html").stat().st_size > 10_000
    assert f"the page: {folder / 'report.html'}" in out


@pytest.mark.slow
def test_the_demo_says_what_its_runs_say(tmp_path, capsys):
    folder = tmp_path / "demo"
    command = ["demo", *SHORT, "--out", str(folder), "--processes", "1"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("20 devices of five sizes learn to read digits")
    judge(out, folder)
    assert "next: nestling demo" in out
    assert main([*command, "--json"]) == 0  # the runs are read
    assert [row["experiment"] for row in json.loads(capsys.readouterr().out)] == list(demo.PRESETS)


def test_a_missing_package_is_named_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err == "error: the demo needs scikit-learn and plotly: pip install 'nestling[demo]'\n"
    assert not (tmp_path / "demo").exists()
    with pytest.raises(NestlingError, match="needs scikit-learn: "):
        demo._check_packages(page=False)


def test_nothing_is_concluded_without_all_runs():
    assert demo.conclusion([]) == []


@pytest.mark.slow
def test_the_demo_from_a_wheel(tmp_path):
    """Built, installed with its extra and run, without the network: packages are those of this environment."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling: pip install 'nestling[dev]'")
    isolated = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NESTLING_CACHE")}
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir"]
    call([sys.executable, *wheel, tmp_path, ROOT], env=isolated, check=True)
    (file,) = tmp_path.glob("nestling-*.whl")
    call([sys.executable, "-m", "venv", tmp_path / "fresh"], env=isolated, check=True)
    python = tmp_path / "fresh/bin/python"
    (packages,) = (tmp_path / "fresh/lib").glob("python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    (packages / "others.pth").write_text("\n".join(others))  # torch is not installed again
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--force-reinstall", "--no-deps"]
    call([python, *install, file], env=isolated, check=True)
    call([python, "-m", "pip", "install", "--quiet", "--no-index", f"{file}[demo]"], env=isolated, check=True)
    where = call([python, "-c", "import nestling; print(nestling.__file__)"], env=isolated, cwd=tmp_path, check=True)
    assert Path(where.stdout.strip()).is_relative_to(packages)
    done = call(
        [tmp_path / "fresh/bin/nestling", "demo", *SHORT, "--out", "demo", "--processes", "2"],
        env=isolated,
        cwd=tmp_path,
        check=True,
    )
    judge(done.stdout.replace("the page: ", f"the page: {tmp_path}/"), tmp_path / "demo")
