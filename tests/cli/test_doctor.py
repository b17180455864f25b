"""`nestling doctor`: what a bug report needs."""

import json
import sys

import pytest

from nestling.cli import main, unsafe_kernels
from nestling.cli.doctor import _instruction_sets
from nestling.cli.unsafe_kernels import KERNELS, Kernel, verdict


def test_the_facts_of_this_machine(capsys):
    assert main(["doctor", "--json", "--no-kernels"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["nestling"]["version"]
    assert facts["processor"].keys() >= {"model", "architecture", "capability", "isa_cap", "instruction_sets", "cores"}
    assert facts["packages"]["torch"]
    assert facts["optional packages"].keys() >= {"scikit-learn", "ray", "numba"}
    assert facts["disk"]["here"]["free"] > 0
    assert facts["speed layers"]
    assert "kernels" not in facts


def test_people_read_sections_and_verdicts(capsys, monkeypatch):
    answers = {kernel.name: (k == 0, f"verdict {k}") for k, kernel in enumerate(KERNELS)}
    monkeypatch.setattr("nestling.cli.doctor.verdict", lambda kernel: answers[kernel.name])
    monkeypatch.setattr("nestling.cli.doctor._version", lambda name: None if name == "ray" else "1.0")
    assert main(["doctor"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for title in ("system", "processor", "speed layers", "memory", "disk", "packages", "optional packages", "kernels"):
        assert title in lines
    assert any(line.endswith("not installed: pip install 'nestling[ray]'") for line in lines)
    assert [line.endswith(f"verdict {k}") for k, line in enumerate(lines[-3:])] == [True] * 3


@pytest.mark.parametrize(
    ("program", "safe", "words"),
    [
        ("print('right')", True, "clean on this machine"),
        ("print('wrong')", False, "does harm on this machine; Nestling avoids it"),
        ("import os; os.abort()", False, "does harm on this machine"),
        ("import nowhere_to_be_found", None, "could not be tried: ModuleNotFoundError"),
    ],
)
def test_kernels_are_tried_in_processes_of_their_own(program, safe, words):
    actual, sentence = verdict(Kernel("a kernel", program, "does harm"))
    assert actual is safe
    assert words in sentence


def test_a_kernel_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(unsafe_kernels, "_TIMEOUT", 0.2)
    assert verdict(Kernel("a kernel", "import time; time.sleep(60)", "does harm"))[0] is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_memory_is_checked_where_a_kernel_needs_it():
    """The child sees what makes glibc check its memory: it ends as if something had been found."""
    program = "import os; assert 'malloc.check=3' in os.environ['GLIBC_TUNABLES']; os.environ['LD_PRELOAD']; os.abort()"
    assert verdict(Kernel("a kernel", program, "corrupts memory", checks_memory=True))[0] is False


def test_instruction_sets_are_those_of_the_first_core(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name : X\nflags : fpu sse4_1 avx avx2 fma\n\nmodel name : X\nflags : fpu\n")
    assert _instruction_sets(path) == ["sse4_1", "avx", "avx2", "fma"]
    assert _instruction_sets(tmp_path / "nothing") == []
