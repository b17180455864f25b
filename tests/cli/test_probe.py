"""``nestling probe`` and ``nestling list devices``."""

import json

import pytest

from nestling.cli import main
from nestling.fleet import DEVICES
from nestling.sizing.device_probe import device_class, memory_bandwidth

MLP = ["--model", "mlp", "--set", "widths=8,8", "--batch", "2", "--levels", "a,0.25"]


def test_what_is_measured(capsys):
    assert main(["probe", *MLP, "--up", "1 MB", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["level"] for row in result["levels"]] == ["a", "0.25"]
    for row in result["levels"]:
        assert row["macs_per_second"] == pytest.approx(3 * 2 * row["macs"] / row["seconds"])
    assert result["speed"] == max(row["macs_per_second"] for row in result["levels"])
    assert (result["down"], result["up"]) == (None, 1e6)
    figures = {"memory": result["memory"], "speed": result["speed"], "up": 1e6}
    assert (result["class"], result["limited_by"] or "") == device_class(figures)
    assert result["memory"] > 2**26
    assert main(["probe", *MLP]) == 0
    out = capsys.readouterr().out
    assert "class: " in out
    assert "network" not in out


def test_every_simulated_device_is_of_its_own_class():
    for device in DEVICES.values():
        figures = {name: getattr(device, name) for name in ("memory", "speed", "down", "up")}
        assert device_class(figures)[0] == device.name
    assert device_class({"speed": 1.0}) == ("sensor", "speed")
    assert device_class({"speed": 1e15, "memory": 1e15}) == ("workstation", "")


def test_bandwidth_counts_what_is_read_and_written(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("nestling.sizing.device_probe.time.perf_counter", lambda: next(clock))
    assert memory_bandwidth(500, copies=3) == 1000  # bytes in a second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--down", "fast"], "'fast' is no number of bytes"),
        (["--up", "20 ms"], "'20 ms' is no number of bytes"),
        (["--batch", "0"], "a batch has at least 1 sample"),
        (["--model", "nothing"], "there is no model 'nothing'"),
        (["--levels", "z"], "there is no level 'z'"),
    ],
)
def test_what_is_refused(capsys, words, message):
    assert main(["probe", *words]) == 2
    assert message in capsys.readouterr().err


def test_devices_are_listed(capsys):
    assert main(["list", "devices", "phone", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["phone-low", "phone-mid", "phone-high"]
    assert rows[0]["memory"] == DEVICES["phone-low"].memory
    assert main(["list", "devices"]) == 0
    assert "1.5 GMACs/s" in capsys.readouterr().out
