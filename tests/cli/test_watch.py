"""`nestling watch` as a program: it prints its address, and Ctrl-C and SIGTERM end it as any command."""

import http.client
import re
import signal
import subprocess
import sys

import pytest

from nestling.cli import main
from tests.processes import start


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_it_is_stopped(tmp_path, number, code):
    command = [sys.executable, "-m", "nestling", "watch", str(tmp_path), "--no-open"]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
        connection.request("GET", "/events")  # a tab that stays open
        assert connection.getresponse().status == 200
        process.send_signal(number)
        _, err = process.communicate()
        connection.close()
    assert (process.returncode, err) == (code, "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "there is no directory nowhere"),
        ([".", "--port", "70000"], "Invalid value for '--port'"),
        (["file"], "file is a file"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["watch", *args]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
