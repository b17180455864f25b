"""FedPruned: one random sub-network for everybody, for good."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nestling
from nestling import Plan
from nestling.errors import MethodError
from nestling.methods import make
from nestling.nets import example
from tests.harness import plan_of, submodel_plan_of
from tests.methods.method_cases import LAWS, NETS, OPTIONS, axes_of, net_of

RATIOS = (1.0, 0.3)


def plans_of(method, axes):
    """The slices of some clients, all with what one server remembers."""
    return {
        plan_of(method, axes, ratio, round, client) for ratio in RATIOS for round in (1, 2, 30) for client in (0, 7)
    }


@pytest.mark.parametrize("net", NETS)
def test_everybody_gets_the_same_in_every_round_and_that_is_tested(net):
    model, axes = net_of(net)
    method = make("fedpruned", {"ratio": 0.4})
    plans = plans_of(method, axes) | {submodel_plan_of(method, axes, ratio) for ratio in RATIOS}
    assert len(plans) == 1
    plan = plans.pop()
    for axis, size in axes.axes.items():
        kept = len(plan.index(axis)) if axis in plan.runs else size
        assert kept == (size if axis in axes.groups else math.ceil(round(0.4 * size, 9)))
    outputs = nestling.submodel(model, axes, plan).train()(*example(net, **OPTIONS[net]))
    assert torch.isfinite(outputs).all()


@LAWS
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_it_is_drawn_from_the_seed(one, two):
    axes, method = axes_of(40, 40), make("fedpruned", {"ratio": 0.5})
    first, again, second = (plan_of(method, axes, 1.0, seed=seed) for seed in (one, one, two))
    assert first == again
    assert (first == second) == (one == two)
    assert first.index("axis0").tolist() != first.index("axis1").tolist()


def test_all_of_it_is_fedavg():
    axes, method = net_of("cnn")[1], make("fedpruned", {"ratio": 1})
    assert plans_of(method, axes) == {Plan(key="full")}


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.5, math.nan])
def test_ratios_that_cannot_be(ratio):
    with pytest.raises(MethodError, match=f"fedpruned's ratio must be above 0 and at most 1, not {ratio!r}"):
        make("fedpruned", {"ratio": ratio})
