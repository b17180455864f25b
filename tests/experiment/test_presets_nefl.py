"""Presets of NeFL: every row of its tables, with the paper's numbers, and small ones that are small."""

import math
from collections import Counter
from functools import cache

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nestling
from nestling.cut.extract import cuts
from nestling.experiment.presets import PRESETS, find, laptop, nefl
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import Fleet, parse_mix
from nestling.methods import make
from nestling.methods.fjord import OrderedDropout
from nestling.nets import MODELS, build
from nestling.settings import Experiment, read
from tests.harness import submodel_plan_of

WHOLE = [preset.name for preset in nefl.presets()]
DATA = {"cifar10": 50_000, "cifar100": 50_000, "cinic10": 90_000, "svhn": 73_257}
FIVE = [0.2, 0.4, 0.6, 0.8, 1.0]
# Rows counted in the paper; Table 13 tells the sub-models of ViT in two variants, of which one is Table 3's.
AGAIN = [name for name in WHOLE if name.startswith(("fjord-nefl-", "depthfl-nefl-"))]  # the same rows, other versions
LARGE = ("vit-b16", "wide-resnet101-2")
ROWS = {"1": 16, "2": 16, "3": 4, "4": 24, "5": 12, "6": 60, "9": 6, "13": 2}


def method_of(name):
    e = find(name)
    return make(e.method, e.options)


def tables(name):
    """The numbers of the tables in which a preset stands."""
    where = PRESETS[name].repeats.removeprefix("NeFL, Table").split(":")[0].split(", with")[0].removeprefix("s")
    return where.replace(" and ", ", ").replace(" ", "").split(",")


def test_every_row_of_every_table_is_there():
    assert Counter(table for name in WHOLE if name not in AGAIN for table in tables(name)) == ROWS
    for name in WHOLE:
        assert find(f"{name}-laptop") == laptop(find(name))
        assert PRESETS[name].repeats in PRESETS[f"{name}-laptop"].repeats


@pytest.mark.parametrize("model", ["resnet18", "resnet34", "resnet56", "resnet110"])
def test_table_6_has_all_variants(model):
    rows = [name for name in WHOLE if name.endswith(f"-cifar10-iid-{model}") and "6" in tables(name)]
    ours = {(e.options["variant"], e.options["learn_steps"]) for e in map(find, rows) if e.method == "nefl"}
    fixed = {(variant, False) for variant in ("D", "DO", "WD")}
    assert ours == {(variant, True) for variant in ("W", "D", "DO", "WD")} | fixed
    assert {find(row).method for row in rows} == {"heterofl", "fjord", "depthfl", "nefl"}
    assert len(rows) == 10 + 2


def test_nefl_without_a_letter_is_the_variant_of_b1():
    for name in WHOLE:
        e = find(name)
        if name.startswith(("nefl-cifar", "nefl-cinic", "nefl-svhn")):  # the data follows at once
            assert e.options == {"variant": "WD" if e.model.name == "resnet18" else "D", "learn_steps": True}


@pytest.mark.parametrize("name", WHOLE)
def test_the_numbers_of_section_5_and_b5(name):
    e = find(name)
    assert read(msgspec.to_builtins(e)) == e
    assert (e.data.partition, e.data.alpha) == ("dirichlet" if "-dirichlet-" in name else "iid", 0.5)
    assert (e.local.optimizer, e.local.batch_size, e.local.weight_decay) == ("sgd", 32, 0)
    assert (e.model.weights, e.data.dir) == ("", ""), "where files lie is the user's affair"
    assert ("model.weights=FILE" in PRESETS[name].repeats) == ("-pretrained" in name)
    if e.model.name in LARGE:
        assert (e.fleet.clients, e.fleet.per_round, e.rounds, e.local.epochs) == (10, 10, 100, 1)
        assert (e.local.lr, e.local.schedule) == (0.03, "cosine")
        assert (e.local.momentum, e.local.clip_norm) == ((0.9, 1) if e.model.name == "vit-b16" else (0, 0))
        assert e.local.warmup_rounds == round(500 / (DATA[e.data.name] / 10 / 32))
    else:
        assert e.fleet.per_round == e.fleet.clients / 10
        assert (e.rounds, e.local.milestones) == ((100, (50, 75)) if "svhn" in name else (500, (250, 375)))
        assert (e.local.lr, e.local.momentum, e.local.clip_norm, e.local.epochs) == (0.1, 0, 0, 5)
        assert (e.local.schedule, e.local.lr_decay) == ("steps", 0.1)
        clients = int(name.rpartition("-clients-")[2]) if "-clients-" in name else 100
        assert e.fleet.clients == clients


def test_pretrained_resnets_have_the_recipe_from_scratch():
    """§5: 10 clients, 100 rounds and one epoch are those of ViT and Wide ResNet, not of all pre-trained models."""
    names = [name for name in WHOLE if name.endswith("-pretrained") and find(name).model.name not in LARGE]
    assert len([name for name in names if name not in AGAIN]) == 30
    for name in names:
        pretrained, scratch = find(name), find(name.removesuffix("-pretrained").replace("dirichlet", "iid"))
        assert (pretrained.fleet, pretrained.local, pretrained.rounds) == (scratch.fleet, scratch.local, scratch.rounds)
        assert (pretrained.fleet.clients, pretrained.fleet.per_round, pretrained.rounds) == (100, 10, 500)


@pytest.mark.parametrize("name", WHOLE)
def test_all_methods_get_the_same_sizes(name):
    """Levels of HeteroFL and FjORD are widths: their squares are the shares of the parameters that the others get."""
    e = find(name)
    wide = e.model.name in LARGE
    gammas = [0.5, 0.75, 1.0] if wide else [0.04, 0.16, 0.36, 0.64, 1.0] if "-squares" in name else FIVE
    mix = parse_mix(e.fleet.levels)
    widths = e.method in ("heterofl", "fjord")
    assert [level.ratio ** (2 if widths else 1) for level, _ in mix] == pytest.approx(gammas, abs=1e-4)
    assert [share for _, share in mix] == pytest.approx([0.3, 0.3, 0.4] if wide else [0.2] * 5)
    assert e.fleet.assign == ("fixed" if wide else "tiers")
    if widths:  # the digits that levels are written with lose no channel
        channels = set(MODELS[e.model.name].options["widths"])
        for (level, _), gamma in zip(mix, gammas, strict=True):
            assert [math.ceil(level.ratio * n) for n in channels] == [
                math.ceil(round(math.sqrt(gamma) * n, 9)) for n in channels
            ]


@given(client=st.integers(0, 99), number=st.integers(0, 499), method=st.sampled_from(["nefl", "heterofl", "depthfl"]))
def test_clients_of_a_tier_draw_among_its_neighbours(client, number, method):
    """B.5: tier 1 draws of the three smallest sub-models, tier 3 of all; each tier has twenty clients."""
    e = find(f"{method}-cifar10-iid-resnet18")
    fleet = Fleet(e.fleet.clients, e.fleet.per_round, parse_mix(e.fleet.levels), e.fleet.assign, e.seed)
    home = Fleet(e.fleet.clients, e.fleet.per_round, parse_mix(e.fleet.levels), "fixed", e.seed)
    ladder = [level for level, _ in parse_mix(e.fleet.levels)]
    tier = ladder.index(home.level(client, number))
    assert abs(ladder.index(fleet.level(client, number)) - tier) <= 2
    assert Counter(home.level(other, 0) for other in range(100)) == dict.fromkeys(ladder, 20)


def test_baselines_are_those_of_b3():
    assert not method_of("heterofl-cifar10-dirichlet-resnet18").overriding("output_mask")
    assert method_of("fjord-cifar10-iid-resnet34").overriding("loss") == [OrderedDropout(distill=False, widths=())]
    assert method_of("depthfl-cifar10-iid-resnet18") == make("depthfl", {"variant": "plain"})
    assert method_of("fjord-nefl-cifar10-iid-resnet18") == make("fjord", {"variant": "nefl"})
    assert method_of("depthfl-nefl-cifar10-iid-resnet18") == make("depthfl", {"variant": "nefl"})
    for name in WHOLE:
        e = find(name)
        assert e.model.options == {"learn_steps": e.method == "nefl"}


def test_descriptions_say_which_version_of_a_baseline_a_row_is():
    for name in WHOLE:
        e, (_, colon, version) = find(name), PRESETS[name].repeats.partition(": ")
        assert bool(colon) == (e.method in ("fjord", "depthfl"))
        if name in AGAIN:
            other = name.replace("-nefl-", "-", 1)
            assert tables(name) == tables(other)
            assert msgspec.structs.replace(e, name=other, options=find(other).options) == find(other)
            assert "the row's" in version
        elif e.method == "fjord":
            assert version.endswith("the row is fjord-nefl")
    assert len(AGAIN) == sum(find(name).method in ("fjord", "depthfl") for name in WHOLE) / 2


def test_depthfl_has_four_submodels_of_resnet18():
    """B.3: of its prefixes of blocks, the nearest to γ = 0.8 is the whole model."""
    with torch.device("meta"):
        net = build("resnet18", learn_steps=False)
    axes = nestling.trace(net, torch.zeros(1, 3, 32, 32, device="meta"))
    for name in ("depthfl-cifar10-iid-resnet18", "depthfl-nefl-cifar10-iid-resnet18"):
        keys = [submodel_plan_of(method_of(name), axes, gamma, model=net).key for gamma in FIVE]
        assert len(set(keys)) == 4
        assert keys[-2:] == ["full", "full"]


@cache
def macs(model):
    """Multiply-accumulates of one sample through the layers of a whole small model."""
    net, total = built(model).eval(), 0

    def count(layer, _, output):
        nonlocal total
        places = output[0, 0].numel() if output.dim() == 4 else output[0, ..., 0].numel()
        total += layer.weight.numel() * places  # every weight is used at every position

    hooks = [
        layer.register_forward_hook(count)
        for layer in net.modules()
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)
    ]
    with torch.no_grad():
        net(torch.zeros(1, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return total


@cache
def built(model):
    """The small version of a model; step sizes cost nothing."""
    options = next(e.model.options for e in map(laptop, map(find, WHOLE)) if e.model.name == model)
    known = {"size": 32} if model == "vit-b16" else {}
    return build(model, **known, **{**options, "learn_steps": True})


def test_laptops_are_cheap():
    """At most some 90 seconds of one core, even if everybody had the whole model."""
    for name in WHOLE:
        e = find(f"{name}-laptop")
        assert (e.data.max_samples, e.local.batch_size, e.evaluate.norm_clients <= e.fleet.clients) == (5000, 32, True)
        assert math.ceil(e.rounds / e.evaluate.every) == 2
        seen = e.rounds * e.local.epochs * e.data.max_samples * e.fleet.per_round / e.fleet.clients
        assert seen <= 75_000
        assert 3 * seen * macs(e.model.name) < 2.5e12, (name, macs(e.model.name))


def test_models_for_large_images_get_them():
    for name in WHOLE:
        e = find(name)
        large = e.model.name in LARGE
        assert (e.data.resize, e.evaluate.batch) == ((224, 50) if large else (0, 500))
        assert find(f"{name}-laptop").data.resize == 0
    assert sum(bool(find(name).data.resize) for name in WHOLE) == 6


def test_laptops_keep_what_is_compared():
    assert [
        find(f"nefl-cifar10-iid-resnet18{end}-laptop").fleet.clients for end in ("", "-clients-50", "-clients-20")
    ] == [
        20,
        10,
        4,
    ]
    for name in WHOLE:
        whole, small = find(name), find(f"{name}-laptop")
        assert (small.method, small.options) == (whole.method, whole.options)
        assert (small.fleet.levels, small.fleet.assign) == (whole.fleet.levels, whole.fleet.assign)
        assert small.model.options.items() >= whole.model.options.items()
        assert (small.local.lr, small.local.momentum) == (0.03 if whole.model.name in LARGE else 0.1, 0.9)


@pytest.mark.parametrize("model", sorted({find(name).model.name for name in WHOLE}))
def test_small_models_have_submodels_of_all_sizes(model):
    """Every variant finds a sub-model for each level, larger ones for larger levels, and W and WD of about its size."""
    net = built(model)
    axes = nestling.trace(net, torch.zeros(2, 3, 32, 32))
    parameters = {name: tensor.shape for name, tensor in net.named_parameters()}
    rows = [e for e in map(find, WHOLE) if e.model.name == model and e.data.name == "cifar10"]
    for method, options, levels in {(e.method, msgspec.json.encode(e.options), e.fleet.levels) for e in rows}:
        chosen = make(method, msgspec.json.decode(options))
        ratios = [level.ratio for level, _ in parse_mix(levels)]
        plans = [submodel_plan_of(chosen, axes, ratio, model=net) for ratio in ratios]
        sizes = [
            sum(math.prod(cut.shape) for name, cut in cuts(axes, plan).items() if name in parameters) for plan in plans
        ]
        assert sizes == sorted(sizes)
        assert sizes[-1] == sum(map(math.prod, parameters.values()))
        if method == "nefl" and b'"W' in options:
            assert [size / sizes[-1] for size in sizes] == pytest.approx(ratios, abs=0.06)


@pytest.mark.parametrize(
    ("name", "model", "levels"),
    [("nefl", "resnet18", 5), ("depthfl-plain", "resnet18", 5), ("depthfl", "resnet18-exits", 4)],
)
def test_digits_have_a_net_with_blocks(name, model, levels):
    e = find(f"{name}-digits")
    assert (e.method, e.model.name, e.fleet.assign) == (name.removesuffix("-plain"), model, "tiers")
    simulation = simulate(Overrides(e))
    setup, ratios = simulation.setup, simulation.levels.values()
    assert len({setup.submodel_plan(ratio).key for ratio in ratios}) == levels == len(ratios)
    smallest = setup.submodel_plan(min(ratios))
    assert len(smallest.blocks) < len(setup.axes.blocks), "the smallest leaves out blocks"
    assert Experiment.from_toml(e.to_toml()) == e
