"""The sub-models of NeFL: the paper's by the last printed digit, and those built for any other residual net."""

import functools
import math
from collections import OrderedDict
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling import Plan
from nestling.cut.extract import cuts
from nestling.errors import MethodError
from nestling.methods.nefl.nefl_build import NEAR
from nestling.methods.nefl.nefl_plans import VARIANTS, initial_steps, nefl_plan, nefl_source
from nestling.methods.nefl.nefl_tables import FIVE, STEEP, TABLES, THREE
from nestling.nets import build, example
from tests.methods.method_cases import OPTIONS, net_of
from tests.quick import mostly_slow

FEW = settings(deadline=None, derandomize=True, max_examples=12, database=None)
RESIDUAL = [
    *["preresnet18", "preresnet18-paper", "resnet8", "resnet18", "resnet34", "resnet56", "resnet110"],
    *["wide-resnet101-2", "vit-tiny", "vit-b16", "transformer-mlm", "transformer-nwp"],
]
GAMMAS = st.floats(0.06, 0.99)
GRID = (0.04, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@functools.cache
def whole(name, **options):
    """Axes and parameter names of a net in its full size, without values."""
    with torch.device("meta"):
        net = build(name, **options)
    axes = nestling.trace(net, *(x.to("meta") for x in example(name, batch=1, **options)))
    return axes, frozenset(key for key, _ in net.named_parameters())


def share(axes, parameters, plan):
    """The share of the parameters, counted tensor by tensor."""

    def count(plan):
        return sum(math.prod(box.shape) for name, box in cuts(axes, plan).items() if name in parameters)

    return count(plan) / count(Plan())


def blocks(axes, plan):
    return set(axes.blocks if plan.blocks is None else plan.blocks)


def sizes(axes, plan):
    return [len(plan.index(name)) if name in plan.runs else size for name, size in axes.axes.items()]


# ---- the paper's tables


@pytest.mark.parametrize(
    ("name", "variant", "ratios"),
    [
        ("resnet18", "W", [0.201, 0.401, 0.603, 0.801]),
        ("resnet18", "D", [0.214, 0.393, 0.578, 0.808]),
        ("resnet18", "WD", [0.198, 0.401, 0.603, 0.801]),
        ("resnet34", "D", [0.230, 0.390, 0.612, 0.806]),
        ("resnet34", "DO", [0.230, 0.390, 0.612, 0.806]),
        ("resnet34", "WD", [0.201, 0.401, 0.559, 0.802]),
        ("resnet56", "D", [0.205, 0.405, 0.605, 0.805]),
        ("resnet110", "D", [0.203, 0.401, 0.602, 0.802]),
    ],
)
def test_the_papers_ratios_are_found_by_the_model_alone(name, variant, ratios):
    axes, parameters = whole(name)
    plans = [nefl_plan(axes, parameters, gamma, variant) for gamma in FIVE]
    assert [round(share(axes, parameters, plan), 3) for plan in plans] == ratios
    assert [plan.key for plan in plans] == ["g0.2", "g0.4", "g0.6", "g0.8"]
    assert plans == [nefl_plan(axes, parameters, gamma, variant, name) for gamma in FIVE]


@pytest.mark.slow
def test_the_means_of_table_8_name_the_row_that_table_10_misprints():
    """ResNet18, D: 6.68 M parameters and 102 M MACs (both cut, not rounded) leave one choice of blocks for γ = 0.4."""
    net, inputs = build("resnet18"), example("resnet18", batch=1)
    axes = nestling.trace(net, *inputs)
    parameters = frozenset(dict(net.named_parameters()))

    def costs(plan):
        cost = nestling.cost(net, axes, plan, *inputs)
        return np.array([cost.parameters, cost.macs])

    full = costs(Plan())
    without = {block: full - costs(Plan(blocks=axes.blocks.keys() - {block})) for block in axes.blocks}
    others = full + sum(costs(nefl_plan(axes, parameters, gamma, "D")) for gamma in (0.2, 0.6, 0.8))
    fitting = []
    for kept in product((True, False), repeat=8):
        left = full - sum(cost for keeps, cost in zip(kept, without.values(), strict=True) if not keeps)
        if tuple((others + left) // 5 // (10_000, 1_000_000)) == (668, 102):
            fitting.append([block for block, keeps in zip(axes.blocks, kept, strict=True) if keeps])
    plan = nefl_plan(axes, parameters, 0.4, "D")
    assert fitting == [list(plan.blocks)]
    assert plan.blocks == ("stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1", "stages.3.0")
    assert ((others + costs(plan)) / 5).tolist() == [6_688_591.8, 102_437_888.0]


def test_steep_rows_have_the_printed_shares():
    """ResNet110, D: Table 14 prints γ_D of 0.16 and, for γ = 0.64, of 0.65; the blocks themselves cannot be read."""
    axes, parameters = whole("resnet110")
    plans = [nefl_plan(axes, parameters, gamma, "D") for gamma in STEEP]
    assert [round(share(axes, parameters, plan), 3) for plan in plans] == [0.045, 0.163, 0.369, 0.650]
    built = nefl_plan(axes, parameters, 0.64, "D", "none")
    assert round(share(axes, parameters, built), 2) == 0.64, "a sub-model of our own would be nearer to γ than theirs"


@pytest.mark.parametrize("name", ["resnet56", "resnet110", "vit-b16"])
def test_width_times_depth_is_gamma(name):
    """The rule by which the authors' γ_W and the rows that cannot be read were found: γ = γ_W · γ_D."""
    axes, parameters = whole(name)
    for gamma, row in TABLES[name].rows["WD"].items():
        plan = nefl_plan(axes, parameters, gamma, "WD", name)
        depth = share(axes, parameters, Plan(blocks=plan.blocks))
        assert row.width * depth == pytest.approx(gamma, abs=0.001)
        assert share(axes, parameters, plan) == pytest.approx(gamma, abs=0.04)  # whole channels are coarse


@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_their_models(name):
    axes, parameters = whole(name)
    table = TABLES[name]
    weights, vectors = ([0] * len(table.stages) for _ in range(2))
    for key in (key for names in axes.blocks.values() for key in names if key in parameters):
        shape = axes.dims[key].shape
        stage = 0 if name.startswith("vit") else int(key.split(".")[1])
        if shape:  # step sizes have none
            (weights if len(shape) > 1 else vectors)[stage] += math.prod(shape)
    assert (tuple(weights), tuple(vectors)) == (table.weights, table.vectors)
    for variant, rows in table.rows.items():
        for gamma, row in rows.items():
            assert not row.blocks or tuple(map(len, row.blocks.split())) == table.stages
            plan = nefl_plan(axes, parameters, gamma, variant)
            kept = row.blocks.count("1") or sum(table.stages)
            assert len(blocks(axes, plan)) == kept * (2 if name.startswith("vit") else 1)


@pytest.mark.parametrize(("name", "variant"), [(n, v) for n in TABLES for v in TABLES[n].rows if v != "D"])
def test_the_papers_submodels_nest(name, variant):
    """All but D, whose rows for ResNet18 and 34 keep blocks that larger ones drop; so does WD's last of ResNet34."""
    axes, parameters = whole(name)
    for family in (FIVE, STEEP, THREE):
        gammas = sorted(TABLES[name].rows[variant].keys() & set(family))
        plans = [nefl_plan(axes, parameters, gamma, variant, name) for gamma in gammas]
        for small, large in pairwise(plans[: 3 if (name, variant) == ("resnet34", "WD") else None]):
            assert blocks(axes, small) <= blocks(axes, large)
            assert all(a <= b for a, b in zip(sizes(axes, small), sizes(axes, large), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "gammas"),
    mostly_slow(
        [
            ("resnet18", {"classes": 100}, FIVE),
            ("resnet18", {"learn_steps": False, "pool": False, "channels": 1, "norm": "ln"}, FIVE),
            ("resnet34", {"classes": 200, "stem_kernel": 7, "stem_stride": 2}, FIVE),
            ("resnet110", {"classes": 100}, FIVE + STEEP),
            ("vit-b16", {"size": 32, "classes": 100}, THREE),
        ],
        quick=2,
    ),
)
def test_tables_hold_whatever_the_classes_and_the_images(name, options, gammas):
    axes, parameters = whole(name)
    other, others = whole(name, **options)
    for gamma in gammas:
        for variant in TABLES[name].rows:
            if gamma in TABLES[name].rows[variant]:
                plan = nefl_plan(other, others, gamma, variant)
                assert plan.content == nefl_plan(axes, parameters, gamma, variant).content
                assert plan == nefl_plan(other, others, gamma, variant, name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"widths": (16, 32, 64, 128)}),
        ("resnet18", {"widths": (2, 4, 8, 16)}),
        ("resnet18", {"widths": (64, 128, 256, 500)}),  # within 5 %
        ("resnet34", {"widths": (12, 24, 48, 96), "learn_steps": False, "classes": 100}),
        ("resnet56", {"widths": (8, 16, 32), "norm": "ln"}),
        ("resnet110", {"widths": (32, 64, 128)}),
        ("wide-resnet101-2", {"widths": (8, 16, 32, 64), "stem_width": 4}),
        ("vit-b16", {"width": 96, "hidden": 384, "heads": 4, "size": 32}),
    ],
)
def test_auto_takes_the_papers_rows_at_any_width(name, options):
    """The same blocks of the same stages, and the same share of every axis."""
    axes, parameters = whole(name, **options)
    theirs = whole(name)
    for variant, rows in TABLES[name].rows.items():
        for gamma, row in rows.items():
            plan = nefl_plan(axes, parameters, gamma, variant)
            assert plan == nefl_plan(axes, parameters, gamma, variant, name)
            assert blocks(axes, plan) == blocks(theirs[0], nefl_plan(*theirs, gamma, variant))
            width = nestling.plan(axes, math.sqrt(row.width))
            assert sizes(axes, plan) == sizes(axes, width)
            source = "square root of γ" if variant == "W" else f"table {name}"
            assert nefl_source(axes, parameters, gamma, variant) == source
    assert nefl_source(axes, parameters, 0.33, "D") == "builder"
    assert nefl_source(axes, parameters, 1, "D") == "whole model"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("preresnet18", {}),  # the same convolutions, but the norms are those of their inputs
        ("preresnet18", {"widths": (16, 32, 64, 128)}),
        ("resnet18", {"norm": "none"}),
        ("resnet18", {"widths": (64, 128, 256, 480)}),
        ("resnet18", {"widths": (16, 16, 32, 32)}),
        ("resnet18", {"depths": (2, 2, 2, 1)}),
        ("resnet18", {"bottleneck": True, "expansion": 4}),
        ("resnet34", {"bottleneck": True, "expansion": 4}),
    ],
)
def test_other_models_are_built(name, options):
    axes, parameters = whole(name, **options)
    for variant in ("D", "DO", "WD"):
        assert nefl_plan(axes, parameters, 0.4, variant) == nefl_plan(axes, parameters, 0.4, variant, "none")
        assert nefl_source(axes, parameters, 0.4, variant) == "builder"


def test_tables_may_be_named_or_refused():
    axes, parameters = whole("resnet18")
    assert nefl_plan(axes, parameters, 0.2, "WD") != nefl_plan(axes, parameters, 0.2, "WD", "none")
    assert nefl_plan(axes, parameters, 0.3, "WD") == nefl_plan(axes, parameters, 0.3, "WD", "none")
    assert nefl_source(axes, parameters, 0.2, "WD", "none") == "builder"
    other, others = whole("resnet18", widths=(16, 16, 32, 32))
    named = nefl_plan(other, others, 0.2, "WD", "resnet18")
    assert set(other.blocks) - blocks(other, named) == {"stages.3.1"}
    assert nefl_source(other, others, 0.2, "WD", "resnet18") == "table resnet18"


def test_three_times_a_fifth_is_three_fifths():
    axes, parameters = whole("resnet18")
    assert nefl_plan(axes, parameters, 3 * 0.2, "WD").content == nefl_plan(axes, parameters, 0.6, "WD").content


# ---- any other model


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
@FEW
@given(gamma=GAMMAS)
def test_width_is_the_square_root(name, gamma):
    """γ is a share of parameters, which grow with the square of the width: near γ in nets that are wide enough."""
    axes, parameters = whole(name)
    plan = nefl_plan(axes, parameters, gamma, "W", "none")
    assert plan.blocks is None
    assert plan.runs == nestling.plan(axes, math.sqrt(gamma)).runs
    if name.startswith(("resnet18", "resnet34", "wide", "preresnet")):
        assert share(axes, parameters, plan) == pytest.approx(gamma, abs=NEAR)


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
@FEW
@given(gamma=st.one_of(st.sampled_from(GRID), st.floats(0.02, 0.99)))
def test_width_and_depth_meet_gamma(name, gamma):
    """Within 1 % of what was asked for, in every net of ours that has residual blocks."""
    axes, parameters = whole(name)
    plan = nefl_plan(axes, parameters, gamma, "WD", "none")
    assert abs(share(axes, parameters, plan) - gamma) <= NEAR * gamma
    assert all(runs == ((0, runs[0][1]),) for runs in plan.runs.values())
    stages = {block.rsplit(".", 1)[0] for block in axes.blocks if name.startswith("resnet")}
    assert all(any(block.startswith(f"{stage}.") for block in blocks(axes, plan)) for stage in stages)


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
def test_the_grid_of_gammas(name):
    axes, parameters = whole(name)
    actual = [share(axes, parameters, nefl_plan(axes, parameters, gamma, "WD", "none")) for gamma in GRID]
    assert actual == pytest.approx(GRID, rel=NEAR)


@pytest.mark.parametrize("name", [name for name in RESIDUAL if not name.startswith("transformer")])
@FEW
@given(gamma=GAMMAS)
def test_all_axes_are_cut_alike(name, gamma):
    """One ratio gives the units of every axis, but for one unit: the last that were added."""
    axes, parameters = whole(name)
    plan = nefl_plan(axes, parameters, gamma, "WD", "none")
    free = [
        (count, axes.axes[n]) for n, count in zip(axes.axes, sizes(axes, plan), strict=True) if n not in axes.groups
    ]
    assert max((count - 1) / size for count, size in free) <= min(count / size for count, size in free)


def words(count):
    """A net of four blocks behind an embedding of so many words, which is far larger than they are."""
    net = nn.Sequential(nn.Embedding(count, 16), *(Step(16) for _ in range(4)), nn.Linear(16, 3))
    axes = nestling.trace(net, torch.zeros(1, 4, dtype=torch.long))
    return axes, frozenset(dict(net.named_parameters()))


@pytest.mark.parametrize("gamma", [0.13, 0.18, 0.28, 0.47, 0.89, 0.95])
def test_where_a_unit_is_too_large_the_other_axes_make_up_for_it(gamma):
    """One number of each of 1000 words is 5 % of the model: the other axes are cut less, or more."""
    axes, parameters = words(1000)
    plan = nefl_plan(axes, parameters, gamma, "WD")
    cut = list(zip(sizes(axes, plan), axes.axes.values(), strict=True))
    assert max((count - 1) / size for count, size in cut) > min(count / size for count, size in cut)
    assert share(axes, parameters, plan) == pytest.approx(gamma, rel=NEAR)


def test_what_no_units_meet_is_as_near_as_can_be():
    axes, parameters = words(100_000)
    plan = nefl_plan(axes, parameters, 0.28, "WD")
    assert share(axes, parameters, plan) == pytest.approx(0.28, abs=0.5 / 16 + 0.001)


@pytest.mark.parametrize("name", ["resnet56", "resnet110"])
@FEW
@given(gamma=GAMMAS)
def test_width_and_depth_are_balanced(name, gamma):
    """γ_D is near √γ, and stages that are alike lose as many blocks, give or take a few."""
    axes, parameters = whole(name)
    plan = nefl_plan(axes, parameters, gamma, "WD", "none")
    assert share(axes, parameters, Plan(blocks=plan.blocks)) == pytest.approx(math.sqrt(gamma), abs=0.07)
    kept = [sum(block.startswith(f"stages.{k}.") for block in blocks(axes, plan)) for k in range(3)]
    assert max(kept) - min(kept) <= 2


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet56", "preresnet18-paper"])
@FEW
@given(gamma=GAMMAS)
def test_depth_is_as_near_as_whole_blocks_allow(name, gamma):
    """Compared with all ways to shorten the stages, as far as these need not lose one as a whole."""
    axes, parameters = whole(name)
    plan = nefl_plan(axes, parameters, gamma, "D", "none")
    assert plan.runs == {}
    assert plan.content == nefl_plan(axes, parameters, gamma, "DO", "none").content
    stages = [[b for b in axes.blocks if b.startswith(f"stages.{k}.")] for k in range(4)]
    stages = [stage for stage in stages if stage]
    kept = [[block in blocks(axes, plan) for block in stage] for stage in stages]
    assert all(row == sorted(row, reverse=True) for row in kept)  # the last go first
    cost = {b: sum(math.prod(axes.dims[n].shape) for n in axes.blocks[b] if n in parameters) for b in axes.blocks}
    total = sum(math.prod(axes.dims[n].shape) for n in parameters)
    possible = {total - sum(cost.values())}
    for stage in stages:
        possible = {left + sum(cost[b] for b in stage[:k]) for left in possible for k in range(1, len(stage) + 1)}
    off = min(abs(left / total - gamma) for left in possible)
    assert abs(share(axes, parameters, plan) - gamma) <= max(off, NEAR * gamma) + 1e-9
    if min(possible) / total <= gamma:  # where γ is below, a whole stage may go, if that comes nearer
        assert all(any(row) for row in kept)


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
@FEW
@given(gammas=st.tuples(GAMMAS, GAMMAS).map(sorted))
def test_built_submodels_nest_by_width(name, gammas):
    """W nests at any γ; WD may trade width for depth, but at one depth its widths nest."""
    axes, parameters = whole(name)
    for variant in ("W", "WD"):
        small, large = (nefl_plan(axes, parameters, gamma, variant, "none") for gamma in gammas)
        if small.blocks == large.blocks:
            assert all(a <= b for a, b in zip(sizes(axes, small), sizes(axes, large), strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["preresnet18", "resnet18", "vit-tiny", "transformer-mlm"])
def test_submodels_run(name, variant):
    net, axes = net_of(name)
    parameters = frozenset(dict(net.named_parameters()))
    plan = nefl_plan(axes, parameters, 0.7, variant)
    small = nestling.submodel(net, axes, plan)
    (x,) = example(name, **OPTIONS[name])
    assert small(x).shape == net(x).shape
    left = sum(weight.numel() for weight in small.parameters()) / sum(weight.numel() for weight in net.parameters())
    assert left == pytest.approx(share(axes, parameters, plan))
    assert left == pytest.approx(0.7, abs=0.25)  # these nets have few channels


def test_a_block_of_a_transformer_goes_with_both_its_parts():
    for name in ("vit-tiny", "transformer-nwp"):
        axes, parameters = whole(name)
        kept = blocks(axes, nefl_plan(axes, parameters, 0.7, "D", "none"))
        numbers = sorted(int(block.split(".")[1]) for block in kept)
        assert 0 < len(numbers) < len(axes.blocks)
        assert numbers == sorted(2 * list(range(len(numbers) // 2)))


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 40), nn.Linear(40, width)

    def forward(self, x):
        return x + self.outer(self.inner(x).relu())


def test_a_gap_in_the_numbers_parts_stages():
    """Somebody else's model: two stages in one list, and blocks found by looking."""
    net = nn.Sequential(
        nn.Linear(5, 30),
        *(Step(30) for _ in range(4)),
        nn.Linear(30, 60),
        *(Step(60) for _ in range(4)),
        nn.Linear(60, 3),
    )
    axes = nestling.trace(net, torch.zeros(1, 5))
    assert list(axes.blocks) == ["1", "2", "3", "4", "6", "7", "8", "9"]
    parameters = frozenset(dict(net.named_parameters()))
    half = nefl_plan(axes, parameters, 0.54, "D")
    assert half.blocks == ("1", "2", "6", "7")
    assert share(axes, parameters, nefl_plan(axes, parameters, 0.3, "WD")) == pytest.approx(0.3, rel=NEAR)


def test_nets_of_very_many_stages_are_shortened_in_turn():
    stages = {f"stage{k}": nn.Sequential(nn.Linear(8, 8), Step(8), Step(8)) for k in range(20)}
    net = nn.Sequential(OrderedDict(stages))
    axes = nestling.trace(net, torch.zeros(1, 8))
    parameters = frozenset(dict(net.named_parameters()))
    wanted = {f"stage{k}.1" for k in range(20)} | {f"stage{k}.2" for k in range(7)}
    gamma = share(axes, parameters, Plan(blocks=wanted))
    assert blocks(axes, nefl_plan(axes, parameters, gamma, "D")) == wanted


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
            self.layers = nn.ModuleList(Step(64) for _ in range(3))
            self.head.weight = self.token.weight

        def forward(self, x):
            x = self.token(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    net = Tied()
    axes = nestling.trace(net, torch.zeros(1, 4, dtype=torch.long))
    parameters = frozenset(axes.dims)  # both names of the tied weight
    for variant in ("W", "WD"):
        small = nestling.submodel(net, axes, nefl_plan(axes, parameters, 0.4, variant))
        left = sum(w.numel() for w in small.parameters()) / sum(w.numel() for w in net.parameters())
        assert left == pytest.approx(0.4, abs=NEAR if variant == "WD" else 0.25)  # embeddings grow with the width alone


# ---- step sizes


def test_steps_of_table_12():
    axes, parameters = whole("resnet56")
    wanted = {
        0.2: ["18", "18", "18"],
        0.4: ["117", "117", "1116"],
        0.6: ["1116", "1116", "111114"],
        0.8: ["111111111", "11111112", "1111113"],
    }
    for gamma, rows in wanted.items():
        plan = nefl_plan(axes, parameters, gamma, "DO")
        steps = {f"stages.{i}.{j}.step": float(s) for i, row in enumerate(rows) for j, s in enumerate(row)}
        assert initial_steps(axes, plan, "DO") == steps
        assert initial_steps(axes, plan, "D") == dict.fromkeys(steps, 1.0)


def test_gaps_inside_a_stage_and_in_front_of_one():
    axes, parameters = whole("resnet34")
    plan = nefl_plan(axes, parameters, 0.8, "DO")  # 111 1001 110001 111
    larger = {name: value for name, value in initial_steps(axes, plan, "DO").items() if value != 1}
    assert larger == {"stages.1.0.step": 3.0, "stages.2.1.step": 4.0}
    late = Plan(blocks=["stages.1.2", "stages.2.5"])
    assert initial_steps(axes, late, "DO") == {"stages.1.2.step": 7.0, "stages.2.5.step": 4.0}


@pytest.mark.parametrize(
    ("gamma", "wanted"),
    [
        (0.2, ["13", "00", "13", "00"]),  # 11 00 11 00
        (0.4, ["11", "13", "00", "20"]),  # 11 11 00 10
        (0.6, ["11", "11", "11", "20"]),  # 11 11 11 10
        (0.8, ["20", "13", "00", "11"]),  # 10 11 00 11
    ],
)
def test_a_gap_is_counted_across_stages(gamma, wanted):
    axes, parameters = whole("resnet18")
    plan = nefl_plan(axes, parameters, gamma, "DO")
    steps = {f"stages.{i}.{j}.step": float(s) for i, row in enumerate(wanted) for j, s in enumerate(row) if s != "0"}
    assert initial_steps(axes, plan, "DO") == steps
    assert initial_steps(axes, plan, "D") == dict.fromkeys(steps, 1.0)


def test_both_steps_of_a_transformers_block_make_up_for_a_gap():
    axes, parameters = whole("vit-b16")
    steps = initial_steps(axes, nefl_plan(axes, parameters, 0.5, "DO"), "DO")
    assert len(steps) == 12
    assert {name: s for name, s in steps.items() if s != 1} == {
        "blocks.5.attention.step": 7.0,
        "blocks.5.mlp.step": 7.0,
    }


def test_models_without_steps_and_whole_models():
    axes, parameters = whole("preresnet18")
    assert initial_steps(axes, nefl_plan(axes, parameters, 0.4, "DO"), "DO") == {}
    axes, parameters = whole("resnet18")
    steps = initial_steps(axes, nefl_plan(axes, parameters, 1, "DO"), "DO")
    assert len(steps) == 8
    assert set(steps.values()) == {1.0}


# ---- what cannot be


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_whole_model(variant):
    axes, parameters = whole("resnet18")
    assert nefl_plan(axes, parameters, 1.0, variant) == Plan(key="full")


def test_plans_are_remembered():
    axes, parameters = whole("resnet34")
    assert nefl_plan(axes, parameters, 0.33) is nefl_plan(axes, parameters, 0.33)


def refused(match, name="resnet18", gamma=0.2, **options):
    axes, parameters = whole(name)
    with pytest.raises(MethodError, match=match) as caught:
        nefl_plan(axes, parameters, gamma, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gamma", [0, -0.1, 1.01, math.nan, True, "0.2", None])
def test_gamma_is_a_share(gamma):
    refused("above 0 and at most 1, not", gamma=gamma)


def test_other_refusals():
    refused("no variant 'D0'; did you mean .*'DO'", variant="D0")
    refused("no table 'resnet-18'; did you mean 'resnet18'", table="resnet-18")
    refused(
        r"table 'resnet34' is for stages of \(3, 4, 6, 3\) blocks, and this model has \(2, 2, 2, 2\)", table="resnet34"
    )
    refused(
        r"no row for 0\.3 in variant 'DO' \(it has 0\.2, 0\.4, 0\.6, 0\.8\)", gamma=0.3, variant="DO", table="resnet18"
    )
    refused(
        r"no row for 0\.5 in variant 'W' \(it has none\)",
        "wide-resnet101-2",
        0.5,
        variant="W",
        table="wide-resnet101-2",
    )
    axes, _ = whole("resnet18")
    with pytest.raises(MethodError, match="no variant 'X'"):
        initial_steps(axes, Plan(), "X")


@pytest.mark.parametrize("variant", ["D", "DO", "WD"])
def test_models_without_blocks_have_no_depth(variant):
    refused("has none; use variant 'W'", "vgg16", variant=variant)
    axes, parameters = whole("vgg16")
    assert share(axes, parameters, nefl_plan(axes, parameters, 0.2, "W")) == pytest.approx(0.2, abs=NEAR)


@pytest.mark.parametrize(
    ("name", "gamma", "variant", "smallest"),
    [("transformer-mlm", 0.5, "D", "0.891"), ("resnet18", 1e-7, "W", "2.17e-05"), ("resnet18", 1e-7, "WD", "5.19e-06")],
)
def test_too_small(name, gamma, variant, smallest):
    refused(
        f"as small as {gamma:g} of its parameters: the smallest sub-model has {smallest}", name, gamma, variant=variant
    )
