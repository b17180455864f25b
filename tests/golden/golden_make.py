"""Make golden runs with whichever `nestling` is on the path: ``python golden_make.py FOLDER [NAME…]``.

It uses nothing but what is public, so that one script serves every revision.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import golden_models
import tomli_w

import nestling

HERE = Path(__file__).parent


def cases() -> dict[str, dict[str, Any]]:
    """Return the runs of golden_runs.toml by name, with all their settings."""
    table = tomllib.loads((HERE / "golden_runs.toml").read_text(encoding="utf-8"))
    base = table.pop("base")

    def complete(name: str) -> dict[str, Any]:
        own = dict(table[name])
        like = own.pop("like", None)
        inherited = base if like is None else complete(like)
        return inherited | own

    return {name: complete(name) for name in table}


def make(folder: Path, name: str, case: dict[str, Any]) -> None:
    """Make one run into ``FOLDER/NAME``."""
    settings = {key: value for key, value in case.items() if key not in ("steps", "same_as")}
    steps, objects = case.get("steps"), {}
    if isinstance(settings["model"], str):
        objects["model"] = golden_models.build(settings.pop("model"))
    rounds = settings["rounds"]
    if steps == "resume":
        settings["rounds"] = rounds // 2
    experiment = nestling.Experiment.from_toml(tomli_w.dumps(settings))
    out = folder / name
    if steps == "fail":
        _fail_once(experiment, out, objects)
    else:
        nestling.run(experiment, out=out, **objects)
    if steps == "resume":
        nestling.resume(out, rounds=rounds, **objects)


def _fail_once(experiment: Any, out: Path, objects: dict[str, Any]) -> None:
    os.environ["GOLDEN_FAIL"] = str(out / "metrics.jsonl")
    try:
        nestling.run(experiment, out=out, **objects)
    except Exception as problem:
        print(f"    failed as planned: {problem}")
    else:
        raise SystemExit("the evaluation that should fail did not")
    finally:
        del os.environ["GOLDEN_FAIL"]
    nestling.resume(out, **objects)


def main(folder: Path, names: list[str]) -> None:
    """Make runs by name; all of them where none is named."""
    known = cases()
    for number, name in enumerate(names or known, start=1):
        started = time.perf_counter()
        make(folder, name, known[name])
        print(f"{number:3d}/{len(names or known)} {name}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
