"""A run killed before any of its file operations goes on to the same bytes, and leaves nothing else behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "kill_at.py"


def killed(case, folder, first, step):
    """Kill a run before every `step`-th file operation from `first` on; return what was told of it."""
    command = [sys.executable, str(PROGRAM), case, str(folder), str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.parametrize("case", ["standalone", "nefl", "fedmorph", "topk"])
def test_killed_before_any_file_operation(tmp_path, case):
    result = killed(case, tmp_path, 1, 1)
    assert result["operations"] > 100
    assert result["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ["standalone", "feddf", "ds-fl", "fed-et", "lora", "dp", "krum", "fan-in"])
def test_killed_before_some_file_operations(tmp_path, case):
    assert killed(case, tmp_path, 4, 41)["wrong"] == []
