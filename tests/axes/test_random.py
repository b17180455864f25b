"""The law on random programs: what `check` lets pass is right for every plan, or refuses to run."""

import pytest
import torch

import nestling
from tests.axes.axes_prove import assert_identity, assert_like_zeroed, assert_whole_plan, some_units
from tests.axes.axes_random import Program
from tests.quick import mostly_slow

VECTORS = (torch.linspace(-1, 1, 12).cos().view(3, 4),)
SEEDS = range(120)
_proved = {}


def proved(seed):
    """The program of a seed and its map, where it has one that `check` lets pass."""
    if seed not in _proved:
        torch.manual_seed(seed)
        model = Program(seed).eval()
        try:
            axes = nestling.trace(model, *VECTORS)
            good = nestling.check(model, axes, *VECTORS).ok
        except nestling.NestlingError:
            good = False
        _proved[seed] = (model, axes) if good else None
    return _proved[seed]


def runs(model, axes, kept):
    try:
        nestling.submodel(model, axes, nestling.Plan(kept))(*VECTORS)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, quick=20))
def test_a_sub_model_that_runs_is_right(seed):
    if proved(seed) is None:
        return
    model, axes = proved(seed)
    assert_whole_plan(model, axes, VECTORS, {})
    assert_identity(model, axes, nestling.Plan(some_units(axes, seed)))
    for draw in range(5):
        kept = some_units(axes, draw, groups=draw % 2 == 0)
        if runs(model, axes, kept):
            assert_like_zeroed(model, axes, kept, VECTORS, {})


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, quick=20))
def test_a_plan_that_fits_can_be_run(seed):
    """A client that is given a plan can build and run what it says: nobody tells it otherwise."""
    if proved(seed) is None:
        return
    model, axes = proved(seed)
    for draw in range(5):
        kept = some_units(axes, draw, groups=draw % 2 == 0)
        assert runs(model, axes, kept), (model.steps, kept, axes.axes)


def test_most_programs_can_be_judged():
    """The two tests above look at something: of the first programs, half are proved, and with several axes."""
    actual = [proved(seed) for seed in list(SEEDS)[:30]]
    good = [axes for _, axes in filter(None, actual)]
    assert len(good) >= 10
    assert sum(len(axes.axes) > 1 for axes in good) >= 5
