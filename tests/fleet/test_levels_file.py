"""`fleet.levels` from a file: rows in three formats, who gets which, and what is refused."""

import json
from collections import Counter

import pytest

import nestling
from nestling.cli import main
from nestling.errors import NestlingError
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import parse_levels_file
from nestling.settings import Evaluate
from tests.run_cases import outcome, small, tiny

TOML = """
[[device]]
clients = "0-4, 7"
level = "b"
[[device]]
name = "watches"
clients = "5-6"
budget = "6 kB"
"""
CSV = 'clients,level,budget\n"0-4, 7",b,\n5,,6 kB\n6,,"6 kB, 1 GMACs"\n'
JSON = json.dumps({"0-4, 7": 0.5, "5": "6 kB", "6": "6 kB"})
DEVICES = "clients,memory,speed,down,up\n0-3,5 MB,1 GMACs,1 MB,500 kB\n4-7,150 kB,50 MMACs,100 kB,50 kB\n"


def simulation_of(tmp_path, name, text, *settings):
    path = tmp_path / name
    path.write_text(text)
    return simulate(Overrides(small().with_settings([f"fleet.levels={path}", *settings])))


@pytest.mark.parametrize(("name", "text"), [("f.toml", TOML), ("f.csv", CSV), ("f.json", JSON)])
def test_clients_have_the_levels_and_budgets_of_the_file(tmp_path, name, text):
    simulation = simulation_of(tmp_path, name, text)
    levels = [simulation.fleet.level(client, 3) for client in range(8)]
    assert [levels[client].ratio for client in (0, 1, 2, 3, 4, 7)] == [0.5] * 6
    assert levels[5] == levels[6]
    costs, setup = simulation.costs, simulation.setup
    assert costs.cost(setup.submodel_plan(levels[5].ratio)).bytes <= 6_000
    assert costs.cost(setup.submodel_plan(levels[5].ratio + 1e-4)).bytes > 6_000
    assert setup.ratios == (levels[5].ratio, 0.5)
    assert list(simulation.levels.values()) == [0.5, levels[5].ratio]
    assert dict(simulation.fleet.mix)[levels[5]] == 0.25


def test_shares_are_dealt_like_those_of_mixes(tmp_path):
    text = '[[device]]\nshare = 3\nlevel = "a"\n[[device]]\nshare = 1\nlevel = "d"\n'
    simulation = simulation_of(tmp_path, "f.toml", text)
    plain = simulate(Overrides(small().with_settings(["fleet.levels=a3-d1"])))
    assert [simulation.fleet.level(client, 1) for client in range(8)] == [
        plain.fleet.level(client, 1) for client in range(8)
    ]
    assert Counter(simulation.fleet.level(client, 1).name for client in range(8)) == {"a": 6, "d": 2}


def test_devices_choose_levels_by_memory_and_are_timed(tmp_path):
    simulation = simulation_of(tmp_path, "f.csv", DEVICES)
    high, low = simulation.participant(0, 1).level, simulation.participant(5, 1).level
    assert high.name == "a"
    assert low.ratio < 1
    assert simulation.costs.cost(simulation.setup.submodel_plan(low.ratio)).memory <= 150_000
    assert simulation.devices.device_of(4).speed == 50e6
    assert simulation.devices.device_of(3).memory == 5e6
    result = nestling.run(simulation.settings.with_settings(["rounds=1"]))
    assert result.summary["simulated_seconds"] > 0
    dropping = simulation.settings.with_settings(["rounds=1", "fleet.deadline=0.000001"])
    assert nestling.run(dropping).rounds[-1]["dropped"] == 4  # all of a round


def test_the_file_that_fit_writes_is_one(tmp_path, capsys):
    file = tmp_path / "fleet.toml"
    words = ["--budget", "a: 20 kB", "--budget", "b: 100 kB", "--budget", "c: 60 s", "--by", "width"]
    assert main(["fit", "mlp", *words, "--out", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    read = parse_levels_file("fleet.toml", file.read_text())
    assert [(row.name, str(row.budget)) for row in read.rows[:2]] == [("a", "20 kB"), ("b", "100 kB")]
    assert read.rows[2].level.ratio == rows[2]["width"]  # times differ between machines
    assert main(["cost", "--model", "mlp", "--levels", str(file), "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)
    assert [(row["level"], row["width"], row["bytes"]) for row in costs] == [
        (row["name"], row["width"], row["bytes"]) for row in rows
    ]


def test_a_run_notices_that_its_file_changed_and_does_not_need_it(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("clients,level\n0-1,a\n2-3,0.3\n")
    experiment = tiny(rounds=2, evaluate=Evaluate(every=1, samples=20)).with_settings([f"fleet.levels={path}"])
    whole = nestling.run(experiment, out=tmp_path / "whole")
    nestling.run(experiment.with_settings(["rounds=1"]), out=tmp_path / "run")
    path.write_text("clients,level\n0-1,a\n2-3,0.4\n")
    with pytest.raises(NestlingError, match=r"of fleet.levels is not the one that .* was started with"):
        nestling.resume(tmp_path / "run", rounds=2)
    assert set(nestling.load(tmp_path / "run").levels) == {"a", "0.3"}  # as it was
    path.unlink()
    nestling.resume(tmp_path / "run", rounds=2)
    one, other = outcome(tmp_path / "run"), outcome(tmp_path / "whole")
    assert (one[0], one[2]) == (other[0], other[2])
    assert whole.summary["final"]["submodels"].keys() == {"a", "0.3"}


def test_runs_without_a_file_record_none(tmp_path):
    nestling.run(tiny(rounds=1), out=tmp_path / "run")
    assert "levels" not in json.loads((tmp_path / "run" / "identity.json").read_text())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.toml", "", "f.toml has no rows"),
        ("f.toml", "[[device", "is not a TOML file"),
        ("f.json", "[", "is not a JSON file"),
        ("f.json", "3", "must hold rows, not 3"),
        ("f.json", "[3]", "row 1 of .*f.json must be a table"),
        ("f.toml", "fleet = 3", "holds 'fleet'"),
        ("f.csv", "clients,levle\n0,a\n", "row 1 of .*f.csv has 'levle'; did you mean 'level'"),
        ("f.csv", "clients,level,budget\n0,a,2 MB\n", "must have one of level, budget"),
        ("f.csv", "clients\n0\n", "must have one of level, budget"),
        ("f.csv", "clients,share,level\n0,1,a\n", "names its clients and gives a share"),
        ("f.csv", "clients,level\n0,a\n,b\n", "names the clients of some rows and not of others"),
        ("f.csv", "clients,level\n0-7,z\n", "row 1 of .*: there is no level 'z'"),
        ("f.csv", "clients,level\n7-0,a\n", "clients are numbers from 0 and ranges"),
        ("f.csv", "clients,level\n0-5,a\n5-7,b\n", "names client 5 twice"),
        ("f.csv", "clients,level\n0-5,a\n", "has no row for 2 of 8 clients, such as 6"),
        ("f.csv", "clients,level\n0-8,a\n", "names client 8, but fleet.clients=8 has clients 0 to 7"),
        ("f.csv", "clients,budget\n0-7,2 parsecs\n", "the budget '2 parsecs' cannot be read"),
        ("f.csv", "clients,budget\n0-7,5 B\n", "no sub-model meets the budget 5 B: the smallest possible has"),
        ("f.csv", "clients,budget\n0-7,20 ms\n", "a limit of time .* gives other levels on every machine"),
        ("f.csv", "clients,memory\n0-7,2 MB\n", "a device needs memory, speed, down, up, and 'speed' is missing"),
        ("f.csv", DEVICES + "8,1 MB,0,1,1\n", "the speed of device .* must be a finite number above 0"),
        ("f.csv", DEVICES.replace("5 MB", "5 MMACs"), "'5 MMACs' is no number of bytes"),
        ("f.toml", '[[device]]\nlevel="a"\n[[device]]\nmemory=1\nspeed=1\ndown=1\nup=1\n', "use one of the two"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, message):
    with pytest.raises(NestlingError, match=message):
        simulation_of(tmp_path, name, text)


def test_settings_that_contradict_the_file(tmp_path):
    with pytest.raises(NestlingError, match=r"'nowhere\.toml', cannot be read: No such file"):
        simulate(Overrides(small().with_settings(["fleet.levels=nowhere.toml"])))
    for setting, message in (
        ("fleet.assign=dynamic", "use fleet.assign=fixed"),
        ("fleet.devices=laptop", "leave out fleet.devices=laptop"),
        ("method=fedavg", "fedavg has one size for all clients"),
        ("fleet.deadline=3", "fleet.deadline needs devices, and .*f.toml has none"),
    ):
        with pytest.raises(NestlingError, match=message):
            simulation_of(tmp_path, "f.toml", TOML, setting)
