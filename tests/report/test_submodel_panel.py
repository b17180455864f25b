"""Panels of sub-models with tensors of their own."""

import pytest

from nestling.report.runs_by_seed import experiments
from nestling.report.submodel_panel import steps, weights
from tests.report.report_runs import run

STEPS = {"1": {"stages.0.0": 1.1, "stages.0.1": 0.9}, "0.2": {"stages.0.0": 1.4}}


def test_every_sub_model_is_a_line_in_a_shade_of_its_method_with_a_name():
    other = run("other", method="fedavg")
    groups = experiments([other, run("nefl", method="nefl", panels={"steps": STEPS, "weights": {"1": {"stem": 0.2}}})])
    (figure,) = steps(groups)
    assert figure["experiment"] == 1
    assert figure["names"] == ["stages.0.0", "stages.0.1"]
    whole, small = figure["series"]
    assert (whole["name"], whole["x"]["block"], whole["y"]["step size"]) == ("sub-model 1", [1, 2], [1.1, 0.9])
    assert (small["x"]["block"], small["y"]["step size"], small["texts"]) == ([1], [1.4], ["stages.0.0"])
    assert 0 < small["shade"] < whole["shade"] == 1
    assert whole["experiment"] == 1
    assert weights(groups)[0]["series"][0]["y"] == {"mean |w|": [0.2]}


@pytest.mark.parametrize(
    "broken",
    [{}, {"steps": 3}, {"steps": {"1": 3}}, {"steps": {"1": {"stem": 1.0}, "0.2": 3}}, {"steps": {}}, {"steps": []}],
)
def test_what_is_not_by_sub_model_is_not_drawn(broken):
    assert steps(experiments([run(panels=broken)])) is None
