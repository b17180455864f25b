"""A run that is over is not touched again, whatever its method; one killed just before its end ends the same."""

import pytest

from nestling.experiment import find, resume, run
from nestling.methods import names
from tests.quick import mostly_slow
from tests.run_cases import outcome

QUICK = [
    "rounds=2",
    "local.epochs=1",
    "data.max_samples=80",
    "evaluate.every=1",
    "evaluate.samples=20",
    "fleet.clients=4",
    "fleet.per_round=2",
    "checkpoint_every=1",
    "group_clients=off",
]
SMALL = {  # what presets have for these methods, only smaller
    "depthfl": ["model.options.widths=[16, 16, 16, 16]", "fleet.levels=0.6-1"],
    "nefl": ["model.options.widths=[16, 16, 16, 16]", "fleet.levels=0.6-1"],
    "fedmorph": ["model.options.widths=[8, 16]", "options.every=1"],
    "fedmorphprox": ["model.options.widths=[8, 16]", "options.every=1"],
}


def quick(method):
    more = SMALL.get(method, ["model.options.widths=[8, 16]", "fleet.levels=a-c"])
    return find(f"{method}-digits").with_settings([*QUICK, *more])


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", mostly_slow(names(), quick=5))
def test_resuming_changes_nothing(tmp_path, method):
    first = run(quick(method), out=tmp_path / "run")
    before, end = content(tmp_path / "run"), outcome(tmp_path / "run")
    again = resume(tmp_path / "run")
    assert content(tmp_path / "run") == before
    assert again.summary == first.summary
    assert again.rounds == first.rounds
    assert ("networks" in again.summary["final"]) == ("morph" in method)
    (tmp_path / "run" / "summary.json").unlink()  # as after a kill between the last checkpoint and the end
    (tmp_path / "run" / "model.safetensors").unlink()
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == end
