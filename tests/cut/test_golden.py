"""Golden sizes: what the papers print about their sub-models, to the last parameter or the last printed digit."""

import functools
import math
from itertools import pairwise

import pytest
import torch

import nestling
from nestling import Plan, cost, extract
from nestling.methods.nefl.nefl_tables import FIVE, TABLES, THREE
from nestling.nets import build, example


@functools.cache
def whole(name):
    """Map, shapes and parameter names of a net in its full size, without values."""
    with torch.device("meta"):
        net = build(name)
    (x,) = example(name, batch=1)
    return net, nestling.trace(net, x.to("meta")), {key for key, _ in net.named_parameters()}


def count(name, plan):
    net, axes, parameters = whole(name)
    return sum(t.numel() for key, t in extract(axes, plan, net.state_dict()).items() if key in parameters)


WHOLE = {
    "mlp": 199_210,
    "cnn": 1_556_874,
    "preresnet18": 11_172_170,
    "preresnet18-paper": 9_622_090,
    "resnet8": 4_906_314,
    "resnet18": 11_173_970,
    "resnet34": 21_282_138,
    "resnet56": 855_797,
    "resnet110": 1_730_768,
    "vgg16": 14_728_266,
    "transformer-mlm": 19_263_486,
    "transformer-nwp": 4_374_416,
}

LEVELS = (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
BY_LEVEL = {
    "cnn": (1_556_874, 391_370, 98_922, 25_274, 6_594),
    "preresnet18-paper": (9_622_090, 2_408_746, 603_802, 151_762, 38_350),
    "preresnet18": (11_172_170, 2_796_714, 701_018, 176_178, 44_510),
    "transformer-mlm": (19_263_486, 9_107_710, 4_435_326, 2_200_510, 1_108_446),
    "transformer-nwp": (4_374_416, 1_745_744, 766_256, 360_224, 178_136),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole(name):
    assert count(name, Plan()) == WHOLE[name]


def test_fedmorphs_resnet18_has_no_step_sizes():
    parameters = whole("resnet18")[2]
    steps = [key for key in parameters if key.endswith(".step")]
    assert len(steps) == 8
    assert WHOLE["resnet18"] - len(steps) == 11_173_962


@pytest.mark.parametrize("name", BY_LEVEL)
def test_levels_of_heterofl_and_fedrolex(name):
    axes = whole(name)[1]
    assert tuple(count(name, nestling.plan(axes, width)) for width in LEVELS) == BY_LEVEL[name]


@pytest.mark.parametrize("name", BY_LEVEL)
@pytest.mark.parametrize("pick", ["rolling", "random"])
def test_levels_have_the_same_size_wherever_the_window_stands(name, pick):
    axes = whole(name)[1]
    plans = [nestling.plan(axes, 1 / 4, pick, round=311, seed=311)]
    assert [count(name, plan) for plan in plans] == [BY_LEVEL[name][2]]


@pytest.mark.parametrize("name", ["cnn", "preresnet18", "preresnet18-paper", "transformer-nwp"])
def test_cost_agrees(name):
    net, axes, _ = whole(name)
    (x,) = example(name, batch=1)
    for width, wanted in zip(LEVELS[2:], BY_LEVEL[name][2:], strict=True):
        assert cost(net, axes, nestling.plan(axes, width), x).parameters == wanted


# ---- NeFL: Tables 10 to 15

NEFL = {
    ("resnet18", "W"): [0.201, 0.401, 0.603, 0.801],
    ("resnet18", "WD"): [0.198, 0.401, 0.603, 0.801],
    ("resnet34", "D"): [0.230, 0.390, 0.612, 0.806],
    ("resnet34", "WD"): [0.201, 0.401, 0.559, 0.802],
    ("resnet56", "D"): [0.205, 0.405, 0.605, 0.805],
    ("resnet110", "D"): [0.203, 0.401, 0.602, 0.802],
}


def blocks_of(row):
    """The blocks that a row of a table keeps, by the names they have here."""
    return [f"stages.{i}.{j}" for i, stage in enumerate(row.split()) for j, kept in enumerate(stage) if kept == "1"]


def rows_of(name, variant, gammas):
    return [TABLES[name].rows[variant][gamma] for gamma in gammas]


@pytest.mark.parametrize(("name", "variant"), NEFL)
def test_effective_ratios_of_nefl(name, variant):
    """γ_W is a ratio of parameters, so channels shrink by its square root."""
    axes = whole(name)[1]
    ratios = []
    for row in rows_of(name, variant, FIVE):
        plan = nestling.plan(axes, math.sqrt(row.width), blocks=blocks_of(row.blocks) if row.blocks else None)
        ratios.append(round(count(name, plan) / WHOLE[name], 3))
    assert ratios == NEFL[name, variant]


@pytest.mark.parametrize(
    ("name", "gammas", "printed", "digits"),
    [
        ("resnet34", FIVE, [0.23, 0.39, 0.61, 0.81], 2),
        ("resnet56", FIVE, [0.2, 0.4, 0.6, 0.8], 1),
        ("resnet110", FIVE, [0.20, 0.40, 0.60, 0.80], 2),
        ("wide-resnet101-2", THREE, [0.51, 0.75], 2),
    ],
)
def test_gamma_d_as_printed(name, gammas, printed, digits):
    axes = whole(name)[1]
    full = count(name, Plan())
    actual = [
        round(count(name, nestling.plan(axes, blocks=blocks_of(row.blocks))) / full, digits)
        for row in rows_of(name, "D", gammas)
    ]
    assert actual == printed


def test_gamma_d_of_vit():
    net, axes, _ = whole("vit-b16")
    full = count("vit-b16", Plan())
    ratios = []
    for depth in (6, 9):
        plan = nestling.plan(axes, blocks=[f"blocks.{k}.{part}" for k in range(depth) for part in ("attention", "mlp")])
        ratios.append(round(count("vit-b16", plan) / full, 2))
    assert ratios == [0.50, 0.75]
    assert len(axes.blocks) == 2 * len(net.blocks) == 24


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet56", "resnet110"])
def test_a_dropped_first_block_keeps_its_shortcut(name):
    net, axes, _ = whole(name)
    small = extract(axes, Plan(blocks=[]), net.state_dict())
    stages = len(net.stages)
    wanted = {f"stages.{k}.0.skip.conv.weight" for k in range(1, stages)}
    assert wanted <= set(small)
    assert not any(".body." in key or key.endswith(".step") for key in small)
    # closed form of what is left: stem, shortcuts with their norms, head
    widths = [net.stages[k][0].body.conv1.weight.shape[0] for k in range(stages)]
    left = 27 * widths[0] + 2 * widths[0] + 10 * widths[-1] + 10
    left += sum(a * b + 2 * b for a, b in pairwise(widths))
    assert count(name, Plan(blocks=[])) == left


def test_closed_form_of_the_cnn():
    """Kernels of nine, biases, norms, a linear layer: every level from the formula."""
    axes = whole("cnn")[1]
    for width in (1, 0.5, 0.3, 0.11, 1 / 64):
        a, b, c, d = (math.ceil(round(width * size, 9)) for size in (64, 128, 256, 512))
        wanted = sum(9 * i * o + 3 * o for i, o in ((1, a), (a, b), (b, c), (c, d))) + 10 * d + 10
        assert count("cnn", nestling.plan(axes, width)) == wanted


def test_closed_form_of_the_transformer():
    axes = whole("transformer-mlm")[1]
    for width in LEVELS:
        e, d, f, v = (math.ceil(width * size) for size in (256, 32, 512, 33_278 / width))
        attention = 3 * (e * 8 * d + 8 * d) + 8 * d * e + e
        layer = attention + (e * f + f) + (f * e + e) + 4 * e
        wanted = (v + 1) * e + 64 * e + 2 * e + 4 * layer + (e * e + e) + 2 * e + e * v + v
        assert count("transformer-mlm", nestling.plan(axes, width)) == wanted
