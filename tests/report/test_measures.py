"""Reports of tasks that are judged by other metrics than accuracy and perplexity."""

import json

import torch
from torch import nn

import nestling
from nestling.cli.run import format_metric
from nestling.data.function_clients import FunctionClients
from nestling.report.headline import headline
from nestling.report.page import write
from nestling.report.read import read
from nestling.report.runs_by_seed import experiments
from nestling.report.table import columns, compare
from nestling.settings import Evaluate, Experiment, FleetSettings


def samples(client):
    x = torch.rand(20, 1, generator=torch.Generator().manual_seed(client))
    return x, 0.1 * x


def run_to(folder, name, lr):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    settings = Experiment(
        name=name,
        method="fedavg",
        rounds=2,
        fleet=FleetSettings(clients=3, per_round=3, levels="a"),
        evaluate=Evaluate(every=1),
    ).with_settings([f"local.lr={lr}", "local.epochs=1"])
    data = FunctionClients(samples, clients=3, tested=samples(9), name="lines")
    return nestling.run(settings, model=net, dataset=data, out=folder)


def test_a_regression_is_judged_by_its_error(tmp_path):
    good, bad = run_to(tmp_path / "good", "good", 0.1), run_to(tmp_path / "bad", "bad", 1e-6)
    assert good.summary["metrics"][0] == {"name": "rmse", "better": "lower", "percent": False}
    assert good.summary["final"]["rmse"] < bad.summary["final"]["rmse"] < 1
    assert good.rounds[0]["train_accuracy"] is None
    errors = [line["evaluation"]["rmse"] for line in good.rounds]
    assert good.summary["best"]["rmse"] == min(errors)
    rows = compare([read(tmp_path / "good"), read(tmp_path / "bad")])
    json.dumps(rows)
    shown = {column.title: column.cells for column in columns(rows)}
    assert [cell.best for cell in shown["rmse"]] == [True, False]
    assert "%" not in shown["rmse"][0].text
    assert "worst rmse" not in shown  # where there is one size, none is the worst
    runs = [read(tmp_path / "good"), read(tmp_path / "bad")]
    assert headline(experiments(runs)).heading.startswith("good reaches")
    assert format_metric(good.summary["final"], good.summary["metrics"]).startswith("rmse 0.")
    write([read(tmp_path / "good"), read(tmp_path / "bad")], tmp_path / "page.html")
    assert "rmse" in (tmp_path / "page.html").read_text()
