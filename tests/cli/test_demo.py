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
from nestling.settings import FleetSettings
from tests.processes import call

ROOT = Path(__file__).parents[2]
SHORT = ["rounds=2", "local.epochs=1", "data.max_samples=200"]


def judge(out: str, folder: Path) -> None:
    """The table, the sentences and the page are those of the runs in a folder."""
    summaries = {
        name: json.loads((folder / "demo" / name / "seed-0/summary.json").read_text()) for name in demo.PRESETS
    }
    for name, summary in summaries.items():
        assert re.search(rf"^{name} .*{100 * summary['final']['global_accuracy']:.1f} %", out, re.M), name
    mixed = [name for name in demo.PRESETS if name not in (demo.LARGE, demo.SMALL)]
    best = max(mixed, key=lambda name: summaries[name]["final"]["mean_submodel"])
    final, large = summaries[best]["final"], summaries[demo.LARGE]
    sent, whole = (one["bytes_down"] + one["bytes_up"] for one in (summaries[best], large))
    said = " ".join(out.split())
    reached, largest, least = (
        round(100 * one["final"]["global_accuracy"], 1) for one in (summaries[best], large, summaries[demo.SMALL])
    )
    assert f"{best} reaches {reached} %, " in said
    assert f"training the largest model ({largest} %), for {100 * sent / whole:.0f} % of its bytes" in said
    assert "although 80 % of its devices could never carry that model" in said
    levels = summaries[best]["levels"]
    for name, level in levels.items():
        assert f"{100 * final['submodels'][name]['accuracy']:.1f} % with {level['parameters']:,}" in said
    assert f"Everybody training the smallest model reaches {least} %" in said
    assert (folder / "demo/report.html").stat().st_size > 10_000
    assert "the page: demo/report.html" in out


def test_a_missing_package_is_named_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err == "error: the demo needs scikit-learn: pip install 'nestling[demo]'\n"
    assert not (tmp_path / "demo").exists()


def test_nothing_is_concluded_without_all_runs():
    assert demo.conclusion(FleetSettings(), []) == []


@pytest.mark.slow
def test_the_demo_from_a_wheel(tmp_path):
    """Built, installed with its extra and run, without the network: packages are those of this environment."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling: pip install 'nestling[dev]'")
    isolated = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NESTLING_CACHE")}
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir"]
    call([sys.executable, *wheel, tmp_path, ROOT], env=isolated, check=True)
    (file,) = tmp_path.glob("nestling-*.whl")
    call([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], env=isolated, check=True)
    python = tmp_path / "fresh/bin/python"
    (packages,) = (tmp_path / "fresh/lib").glob("python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    (packages / "others.pth").write_text("\n".join(others))  # torch is not installed again
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    call([*install, "--force-reinstall", "--no-deps", file], env=isolated, check=True)
    call([*install, "nestling[demo]"], env=isolated, check=True)  # what the extra names is there
    where = call([python, "-c", "import nestling; print(nestling.__file__)"], env=isolated, cwd=tmp_path, check=True)
    assert Path(where.stdout.strip()).is_relative_to(packages)
    command = [tmp_path / "fresh/bin/nestling", "demo", *SHORT, "--out", "demo", "--processes", "2"]
    printed = call(command, env=isolated, cwd=tmp_path, check=True).stdout
    assert printed.startswith("20 devices of different sizes learn to read digits")
    judge(printed, tmp_path)
    assert "next: nestling demo --out demo --seeds 3" in printed
    rows = json.loads(call([*command, "--json"], env=isolated, cwd=tmp_path, check=True).stdout)  # the runs are read
    assert [row["experiment"] for row in rows] == list(demo.PRESETS)
