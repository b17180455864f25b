"""Every model of the zoo: the axes found, the proof of `check`, and sub-models that are right for any plan."""

import pytest

import nestling
from nestling.axes import Axis
from nestling.axes.dims import Dims, Leaf
from tests.axes.axes_prove import (
    assert_identity,
    assert_like_zeroed,
    assert_order_is_free,
    assert_trains,
    assert_whole_plan,
    rewired,
    some_units,
)
from tests.axes.axes_zoo import ZOO
from tests.quick import mostly_slow

every = pytest.mark.parametrize("name", mostly_slow(ZOO, quick=20))


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if case.axes is not None])
def test_axes_are_those_a_person_would_find(name):
    _, axes, _, _ = ZOO[name]
    assert axes.axes == ZOO[name].axes
    assert list(axes.axes) == list(ZOO[name].axes)  # in the order in which the model meets them


@every
def test_dims_have_the_shapes_of_the_state(name):
    model, axes, _, _ = ZOO[name]
    state = model.state_dict()
    assert {key: dims.shape for key, dims in axes.dims.items()} == {key: tuple(t.shape) for key, t in state.items()}


@every
def test_check_proves_it(name):
    model, axes, example, kwexample = ZOO[name]
    nestling.check(model, axes, *example, **kwexample).raise_if_bad()


@every
def test_half_trains_a_step(name):
    model, axes, example, kwexample = ZOO[name]
    assert_trains(model, axes, nestling.plan(axes, width=0.5), example, kwexample)


@every
def test_whole_plan_is_the_same_function(name):
    model, axes, example, kwexample = ZOO[name]
    assert_whole_plan(model, axes, example, kwexample)


@every
def test_merging_what_was_cut_out_changes_nothing(name):
    model, axes, _, _ = ZOO[name]
    for plan in (
        nestling.plan(axes, width=0.5),
        nestling.plan(axes, width=0.4, pick="rolling", round=3),
        nestling.Plan(some_units(axes, seed=1)),
    ):
        assert_identity(model, axes, plan)


@every
def test_any_plan_cuts_aligned_slices(name):
    """Every axis is cut to a size of its own, as masks and per-axis widths do."""
    case = ZOO[name]
    model, axes, example, kwexample = case
    for seed in range(3):
        # a norm over a single unit gives a constant, which would prove nothing
        kept = some_units(axes, seed, case.groups, least=1 if case.zeroed else 2)
        if case.zeroed:
            assert_like_zeroed(model, axes, kept, example, kwexample)
        assert_order_is_free(model, axes, kept, example, kwexample, seed)


@every
def test_map_survives_json(name):
    _, axes, _, _ = ZOO[name]
    assert nestling.AxisMap.from_json(axes.to_json()) == axes


@pytest.mark.parametrize("reference", [assert_like_zeroed, assert_order_is_free])
def test_references_can_fail(reference):
    """The references are no tautologies: a map that uncouples one tensor is told apart by both."""
    model, axes, example, kwexample = ZOO["mlp"]
    loose = Axis("loose", 8)
    wrong = rewired(axes, {"loose": loose}, **{"2__weight": Dims([axes.dims["2.weight"][0], Leaf("loose", 8)])})
    kept = {"model.0": [0, 2, 3, 5, 7], "loose": [1, 2, 4, 6, 7]}
    with pytest.raises(AssertionError):
        reference(model, wrong, kept, example, kwexample)
