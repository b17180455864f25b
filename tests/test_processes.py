"""Children of the tests can be interrupted wherever the tests were started, and none of them hangs for ever."""

import signal
import subprocess
import sys

import pytest

from tests.processes import call, start, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_the_tests_ignore_reach_their_children(number):
    """Python ignores what it inherits as ignored, and raises KeyboardInterrupt only where it does not."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        plain = subprocess.run([sys.executable, "-c", DIES.format(number)], check=False, timeout=60)
        assert plain.returncode == 0  # inherited: a child that is started otherwise does not notice
        assert call([sys.executable, "-c", DIES.format(number)]).returncode == -number
    finally:
        signal.signal(number, before)


DIES = "import os; os.kill(os.getpid(), {:d})"


def test_a_child_ends_at_its_limit():
    with start([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], limit=0.3) as process:
        assert process.wait(60) == -signal.SIGALRM
    assert call(["sleep", "600"], limit=0.3).returncode == -signal.SIGALRM


def test_waiting_has_a_limit():
    wait_until(lambda: True)
    with pytest.raises(AssertionError, match="still waiting"):
        wait_until(lambda: False, limit=0.05)


def test_what_a_child_says_is_told_when_it_fails():
    assert call([sys.executable, "-c", "print('hello')"], check=True).stdout == "hello\n"
    with pytest.raises(AssertionError, match="no luck"):
        call([sys.executable, "-c", "raise SystemExit('no luck')"], check=True)
