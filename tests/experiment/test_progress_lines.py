"""Scripts, log files and notebooks see how far a run is: a line per evaluated round."""

import re

import pytest
import torch
from torch import nn

import nestling
from tests.run_cases import tiny


def test_a_line_per_evaluated_round_and_an_estimate_after_the_first_client(tmp_path, capsys):
    nestling.run(tiny(rounds=4), out=tmp_path / "run")
    printed = capsys.readouterr()
    assert printed.out == ""
    first, estimate, *rounds = printed.err.splitlines()
    assert first == "heterofl-digits: 4 rounds of 2 clients"
    assert re.fullmatch(r"after the first client: about \d.* left", estimate)
    assert [line.split(" · ")[0] for line in rounds] == ["round 2/4", "round 4/4"]
    assert re.fullmatch(
        r"round 2/4 · loss \d+\.\d{3} · accuracy \d+\.\d% · \S+ [KM]iB sent · \S+ s, about .* left", rounds[0]
    )
    assert "left" not in rounds[1]
    assert max(map(len, rounds)) <= 100


def test_a_resumed_run_says_after_which_round(tmp_path, capsys):
    nestling.run(tiny(rounds=2), out=tmp_path / "run", quiet=True)
    assert capsys.readouterr().err == ""
    nestling.resume(tmp_path / "run", rounds=3)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("3 rounds of 2 clients, resumed after round 2")


def test_federate_prints_and_can_be_quiet(capsys):
    x = torch.randn(60, 4)
    data = x, (x[:, 0] > 0).long()
    options = {"test": data, "rounds": 1, "num_clients": 2}
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nestling.federate(net, data, **options, quiet=True)
    assert capsys.readouterr().err == ""
    nestling.federate(net, data, **options)
    assert "round 1/1 · " in capsys.readouterr().err


@pytest.mark.parametrize("track", ["tensorbord", ["wandb", "nothing"]])
def test_unknown_trackers_are_refused_before_anything_is_written(tmp_path, track):
    with pytest.raises(nestling.NestlingError, match=r"there is no tracker|needs the package"):
        nestling.run(tiny(), out=tmp_path / "run", track=track)
    assert not (tmp_path / "run").exists()
