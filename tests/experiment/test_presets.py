"""Presets: all of them can be run, say what the papers say, and the small ones are small."""

import math
from functools import cache

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import TEXTS
from nestling.errors import ConfigError
from nestling.experiment.presets import PRESETS, about, every_preset, find, laptop, rows
from nestling.experiment.presets.fedrolex import DISTILLING
from nestling.experiment.presets.mixes import as_papers_write, server_and_levels
from nestling.fleet import parse_mix
from nestling.methods import make
from nestling.methods import names as method_names
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.scaler import Scaler
from nestling.nets import MODELS, build
from nestling.settings import Experiment, read

# What the models need to know of the data: channels, size of images, classes, training samples.
DATA = {
    "digits": (1, 8, 10, 1437),
    "mnist": (1, 28, 10, 60_000),
    "cifar10": (3, 32, 10, 50_000),
    "cifar100": (3, 32, 100, 50_000),
    "cinic10": (3, 32, 10, 90_000),
    "svhn": (3, 32, 10, 73_257),
    "emnist-byclass": (1, 28, 62, 697_932),
}
LAPTOPS = [name for name in PRESETS if name.endswith("-laptop") and "-private-" not in name]  # small ones of others
EVENINGS = {name for name in PRESETS if name.endswith("-evening")}  # see test_presets_evening
WORDS = {name for name, preset in PRESETS.items() if preset().data.name in TEXTS}  # see test_presets_words
NEFL = {name for name, preset in PRESETS.items() if preset.repeats.startswith("NeFL")}  # see test_presets_nefl
MORPH = {name for name, preset in PRESETS.items() if preset.repeats.startswith("FedMorph")}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def macs(name, options, data, ratio):
    """Multiply-accumulates of one sample through the layers of a model whose every width is cut to `ratio`."""
    channels, size, classes, _ = DATA[data]
    chosen = {"widths": MODELS[name].options["widths"], **dict(options)}
    if "size" in MODELS[name].options:
        chosen["size"] = size
    chosen["widths"] = [math.ceil(width * ratio) for width in chosen["widths"]]
    model, total = build(name, channels=channels, classes=classes, **chosen).eval(), 0

    def count(layer, _, output):
        nonlocal total
        total += layer.weight.numel() * output[0, 0].numel()  # every weight is used at every position

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model(torch.zeros(1, channels, size, size))
    return total


def price(experiment):
    """Expected multiply-accumulates of a whole run, training and tests, and steps of SGD."""
    model, fleet, local, test = experiment.model, experiment.fleet, experiment.local, experiment.evaluate
    method = make(experiment.method, experiment.options)
    # norms cost next to nothing, and four groups would not fit into one channel
    options = tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in model.options.items()
        if key != "norm"
    )
    mix = {level.ratio: share for level, share in parse_mix(fleet.levels)} if method.plan.by_level else {1.0: 1.0}
    one = {ratio: macs(model.name, options, experiment.data.name, model.width * ratio) for ratio in {1.0, *mix}}
    share = (experiment.data.max_samples or DATA[experiment.data.name][-1]) / fleet.clients
    turns = experiment.rounds * fleet.per_round * local.epochs
    # FjORD trains narrower sub-models on top of a client's own
    training = 3 * turns * share * sum(mix[r] * one[r] for r in mix) * (2 if experiment.method == "fjord" else 1)
    if experiment.method in ("standalone", "lg-fedavg"):
        tested = fleet.clients * (test.samples + share) * one[1.0]
    else:
        tested = sum(one.values()) * (test.samples + (test.norm_clients or fleet.clients) * share)
    return training + tested * math.ceil(experiment.rounds / test.every), turns * math.ceil(share / local.batch_size)


def test_names_are_unique_and_stand_paper_by_paper():
    names = [preset.name for preset in every_preset()]
    assert len(names) == len(set(names)) == len(PRESETS)
    papers = ["a demonstration", "the grand comparison", "HeteroFL", "FedRolex", "NeFL", "FedMorph"]
    kinds = [
        (next(i for i, paper in enumerate(papers) if preset.repeats.startswith(paper)), name in LAPTOPS)
        for name, preset in PRESETS.items()
    ]
    assert kinds == sorted(kinds)


def test_every_preset_is_a_valid_experiment_that_survives_its_file():
    for name, preset in PRESETS.items():
        experiment = preset()
        assert experiment.name == name == find(name).name
        assert read(msgspec.to_builtins(experiment)) == experiment
        assert experiment.data.dir == "", "where data lies is the user's affair"
        make(experiment.method, experiment.options)
        parse_mix(experiment.fleet.levels)
    some = list(PRESETS.values())[::50]
    assert [Experiment.from_toml(preset().to_toml()) for preset in some] == [preset() for preset in some]


def test_every_model_can_be_built():
    models = {
        (e.model.name, msgspec.json.encode(e.model.options), e.data.name)
        for e in (preset() for name, preset in PRESETS.items() if name not in WORDS)
    }
    assert len(models) < 90
    for name, options, data in models:
        channels, _, classes, _ = DATA[data]
        with torch.device("meta"):
            build(name, channels=channels, classes=classes, **msgspec.json.decode(options))


def test_every_method_has_its_digits():
    for method in method_names():
        assert find(f"{method}-digits").method == method
    small, large = find("fedavg-small-digits"), find("fedavg-large-digits")
    assert small.model.width == 1 / 16
    assert msgspec.structs.replace(large, name="fedavg-digits") == find("fedavg-digits")
    assert msgspec.structs.replace(small, name=large.name, model=large.model) == large


@pytest.mark.parametrize(
    ("name", "rounds", "rate", "milestones", "classes", "model"),
    [
        ("heterofl-mnist-iid-a-e", 200, 0.01, (100,), 0, "cnn"),
        ("heterofl-mnist-noniid-a-b-c-d-e", 400, 0.01, (200,), 2, "cnn"),
        ("heterofl-cifar10-iid-a-b-c-d-e", 400, 0.1, (150, 250), 0, "preresnet18-paper"),
        ("heterofl-cifar10-noniid-a1-e9-fix", 800, 0.1, (300, 500), 2, "preresnet18-paper"),
        ("fedavg-cifar10-noniid-e-norm-gn", 800, 0.1, (300, 500), 2, "preresnet18-paper"),
    ],
)
def test_heterofl_has_the_numbers_of_its_table_6(name, rounds, rate, milestones, classes, model):
    e = find(name)
    assert (e.rounds, e.local.lr, e.local.milestones, e.data.classes_per_client) == (rounds, rate, milestones, classes)
    assert (e.local.epochs, e.local.batch_size, e.local.momentum, e.local.weight_decay, e.local.clip_norm) == (
        5,
        10,
        0.9,
        5e-4,
        1,
    )
    assert (e.local.schedule, e.local.lr_decay, e.local.optimizer) == ("steps", 0.1, "sgd")
    assert (e.fleet.clients, e.fleet.per_round, e.model.name) == (100, 10, model)
    assert e.fleet.assign == ("fixed" if name.endswith("-fix") else "dynamic")


def test_heterofl_is_complete():
    for data, table in (("mnist", "7"), ("cifar10", "8")):
        for partition in ("iid", "noniid"):
            whole = [
                name for name in PRESETS if f"-{data}-{partition}-" in name and name not in {*LAPTOPS, *EVENINGS, *NEFL}
            ]
            listed = [PRESETS[name].repeats for name in whole]
            tables = [text.split(", ")[1] for text in listed if "on model" not in text]
            assert sum(text.startswith("Table") and text.endswith(table) for text in tables) == 31
            assert sum(name.endswith("-fix") for name in whole) == 10 * 9
            assert tables.count("Table 4") == (13 if partition == "iid" else 0)
            assert tables.count("Table 5") == (0 if partition == "iid" else 22)


def kinds(method):
    """What a method is made of."""
    return {type(part) for part in method.parts}


def test_switches_of_the_ablation_reach_the_method():
    e = find("heterofl-cifar10-noniid-a-e-norm-none-unscaled-unmasked")
    method = make(e.method, e.options)
    assert (kinds(method) & {Scaler, MaskedLoss}, e.model.options["norm"]) == (set(), "none")
    e = find("heterofl-cifar10-noniid-a-e")
    method = make(e.method, e.options)
    assert (kinds(method) & {Scaler, MaskedLoss}, e.model.options["norm"]) == ({Scaler, MaskedLoss}, "bn")
    assert MaskedLoss not in kinds(make("fedavg", find("fedavg-mnist-noniid-a-unmasked").options))
    assert MaskedLoss in kinds(make("fedavg", find("fedavg-mnist-noniid-a").options))


@pytest.mark.parametrize(("data", "high", "low"), [("cifar10", 2, 5), ("cifar100", 20, 50)])
def test_fedrolex_has_the_numbers_of_its_section_4(data, high, low):
    for heterogeneity, classes in (("high", high), ("low", low)):
        start = f"fedrolex-{data}-{heterogeneity}"
        e = find(f"{start}-a-b-c-d-e")
        assert (e.data.partition, e.data.classes_per_client) == ("classes", classes)
        assert (e.fleet.clients, e.fleet.per_round, e.model.name) == (100, 10, "preresnet18")
        shares = [share for _, share in parse_mix(find(f"{start}-real-world").fleet.levels)]
        assert shares == pytest.approx([0.06, 0.10, 0.11, 0.18, 0.55])
        assert [share for _, share in parse_mix(find(f"{start}-a3-e7").fleet.levels)] == pytest.approx([0.3, 0.7])
        assert find(f"{start}-a-b-c-d-e-step-4").options == {"step": 4}
        assert find(f"{start}-a-b-c-d-e-weighting-width").options == {"weighting": "width"}
        for times in (2, 4, 8, 16):
            for method in ("fedrolex", "fed-dropout"):
                e = find(f"{method}-{data}-{heterogeneity}-server-x{times}")
                ((level, _),) = parse_mix(e.fleet.levels)
                assert (e.model.width, level.ratio) == (1.0, 1 / times)


@pytest.mark.parametrize(("data", "rounds"), [("cifar10", 3200), ("cifar100", 2500)])
def test_fedrolex_follows_one_source_per_preset_and_names_it(data, rounds):
    start = f"-{data}-high-"
    named = [preset for name, preset in PRESETS.items() if start in name and not name.endswith(("-laptop", "-evening"))]
    second = [preset for preset in named if preset.name.endswith("-heterofl-schedule")]
    table3 = {"heterofl", "fed-dropout", "fedrolex", "fedavg", "feddf", "ds-fl", "fed-et"}
    assert {preset.name.partition(start)[0] for preset in second} == table3
    assert len(second) == 8
    for preset in named:
        e, local = preset(), preset().local
        listed = (e.rounds, local.lr, local.epochs, local.milestones, local.weight_decay, local.lr_decay)
        if preset in second:
            assert listed == (800, 0.1, 5, (300, 500), 5e-4, 0.1)
            assert about(e.name)["repeats"].endswith("; settings of HeteroFL's Table 6")
            assert f"{e.name}-laptop" not in PRESETS
        else:
            assert listed == (rounds, 2e-4, 1, (1200,), 1e-3, 0.25)
            assert "; settings of the authors' commands, momentum, clipping and batch" in about(e.name)["repeats"]
        assert (local.momentum, local.clip_norm, local.batch_size, e.fleet.assign) == (0.9, 1, 10, "dynamic")


@given(st.sets(st.sampled_from("abcde"), min_size=1), st.sampled_from(["mnist-iid", "cifar10-noniid"]))
def test_clients_train_the_widths_that_the_name_says(levels, where):
    """The golden property of mixes: server's width times a client's level is the level of model a in the name."""
    mix = "-".join(sorted(levels))
    e = find(f"{'heterofl' if len(levels) > 1 else 'fedavg'}-{where}-{mix}")
    wanted = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}
    assert e.model.width == wanted[min(levels)], "the global model is the largest level"
    assert {e.model.width * level.ratio for level, _ in parse_mix(e.fleet.levels)} == {
        wanted[level] for level in levels
    }
    assert as_papers_write(*server_and_levels(mix)) == mix == about(e.name)["levels"]


def test_laptops_keep_the_comparison():
    for name in LAPTOPS:
        small, whole = find(name), find(name.removesuffix("-laptop"))
        if name not in MORPH:
            assert small == laptop(whole)
        if name in MORPH or small.method in DISTILLING:  # shorter distillations
            whole = msgspec.structs.replace(whole, options=small.options)
        assert (small.method, small.options, small.model.width) == (whole.method, whole.options, whole.model.width)
        assert (small.fleet.levels, small.fleet.assign) == (whole.fleet.levels, whole.fleet.assign)
        if name not in WORDS:
            assert msgspec.structs.replace(small.data, max_samples=0, resize=whole.data.resize) == whole.data
            assert small.data.resize == 0
        assert small.model.options.items() >= whole.model.options.items()


def test_laptops_are_cheap():
    """At most about 90 seconds of one core, which does some 30e9 multiply-accumulates a second in training."""
    prices = {name: price(find(name)) for name in LAPTOPS if name not in NEFL | WORDS | MORPH}
    assert max(total for total, _ in prices.values()) < 2.5e12, max(prices, key=lambda name: prices[name][0])
    assert max(steps for _, steps in prices.values()) <= 8000
    assert price(find("heterofl-cifar10-iid-a-e"))[0] > 1000 * prices["heterofl-cifar10-iid-a-e-laptop"][0]


def test_digits_are_cheaper_still():
    assert max(price(find(f"{method}-digits"))[0] for method in method_names()) < 1e11


def test_a_name_that_is_none_is_told_its_neighbours(tmp_path):
    for ask in (find, about):
        with pytest.raises(
            ConfigError, match=r"'heterofl-cifar10-idd-a-e'; did you mean 'heterofl-cifar10-iid-a-e' or"
        ):
            ask("heterofl-cifar10-idd-a-e")
    file = tmp_path / "mine.toml"
    file.write_text("rounds = 7")
    assert find(str(file)).rounds == 7
    with pytest.raises(ConfigError, match="cannot be read"):
        find(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no preset"):
        about(str(file))


def test_rows_tell_the_same_of_every_preset():
    listed = rows()
    assert [row["name"] for row in listed] == list(PRESETS)
    assert {tuple(row) for row in listed} == {("name", "method", "data", "model", "levels", "rounds", "repeats")}
    assert about("fedavg-cifar10-noniid-d") == {
        "name": "fedavg-cifar10-noniid-d",
        "method": "fedavg",
        "data": "cifar10, 2 classes each",
        "model": "preresnet18-paper",
        "levels": "d",
        "rounds": 800,
        "repeats": "HeteroFL, Tables 2 and 8, Figures 6 and 8",
    }
