"""Presets on words: what the papers say of WikiText-2 and Stack Overflow, and small versions that are small."""

import msgspec
import pytest
import torch

from nestling.data import TEXTS
from nestling.experiment.presets import PRESETS, about, find
from nestling.fleet import parse_mix
from nestling.methods import make
from nestling.nets import build

WHOLE = [name for name, preset in PRESETS.items() if preset().data.name in TEXTS and not name.endswith("-laptop")]


def named(word):
    return [name for name in WHOLE if f"-{word}-" in name]


def test_wikitext_is_complete():
    repeated = [PRESETS[name].repeats for name in named("wikitext2")]
    assert sum("Table" in text and "9" in text for text in repeated) == 31
    assert sum("Tables 3 and 9" in text for text in repeated) == 12
    assert sum(name.endswith("-fix") for name in named("wikitext2")) == 10 * 9


def test_wikitext_has_the_numbers_of_table_6():
    e = find("heterofl-wikitext2-iid-a-b-c-d-e")
    assert (e.rounds, e.local.lr, e.local.milestones, e.local.lr_decay) == (200, 0.1, (50, 100), 0.1)
    assert (e.local.epochs, e.local.momentum, e.local.weight_decay, e.local.clip_norm) == (1, 0.9, 5e-4, 1)
    assert (e.fleet.clients, e.fleet.per_round, e.fleet.assign) == (100, 10, "dynamic")
    assert (TEXTS["wikitext2"].task, TEXTS["wikitext2"].length) == ("masked-word", 64)
    assert find("fedavg-wikitext2-iid-e").model.width == 1 / 16
    assert find("heterofl-wikitext2-iid-b1-e9-fix").fleet.assign == "fixed"


def test_stack_overflow_has_the_numbers_of_section_4():
    e = find("fedrolex-stackoverflow-a-b-c-d-e")
    assert (e.fleet.clients, e.fleet.per_round, e.data.partition) == (342_477, 200, "user")
    assert (TEXTS["stackoverflow"].vocabulary, TEXTS["stackoverflow"].length) == (10_000, 20)
    shares = [share for _, share in parse_mix(find("fedrolex-stackoverflow-real-world").fleet.levels)]
    assert shares == pytest.approx([0.06, 0.10, 0.11, 0.18, 0.55])
    for tenths in range(1, 10):
        mix = parse_mix(find(f"fedrolex-stackoverflow-a{tenths}-e{10 - tenths}").fleet.levels)
        assert [share for _, share in mix] == pytest.approx([tenths / 10, 1 - tenths / 10])
    for times in (2, 4, 8, 16):
        for method in ("fedrolex", "fed-dropout"):
            e = find(f"{method}-stackoverflow-server-x{times}")
            ((level, _),) = parse_mix(e.fleet.levels)
            assert (e.model.width, level.ratio) == (1.0, 1 / times)
    repeated = [PRESETS[name].repeats for name in named("stackoverflow")]
    assert {text.partition(", ")[2] for text in repeated} == {
        "Table 3",
        "Tables 3 and 4, Figure 3",
        "Figure 3",
        "Figure 4",
        "Table 4",
    }


def test_stack_overflow_follows_the_authors_commands_and_masks_nothing():
    for name in named("stackoverflow"):
        e, local = find(name), find(name).local
        assert (local.lr, local.weight_decay, local.epochs, local.batch_size) == (2e-4, 5e-4, 1, 24)
        assert (e.rounds, local.milestones, local.lr_decay) == (1500, (600, 1000), 0.1)
        assert not make(e.method, e.options).overriding("output_mask")
        assert "settings of the authors' commands" in about(name)["repeats"]
    small = find("fedrolex-stackoverflow-a-b-c-d-e-laptop")
    assert (small.local.lr, small.select_rows) == (0.1, False), "rows can be selected with a masked loss alone"


def test_models_have_the_papers_sizes():
    for name, words, wanted in (
        ("heterofl-wikitext2-iid-a-b-c-d-e", 33_278, 19_263_486),
        ("fedrolex-stackoverflow-a-b-c-d-e", 10_000, 4_374_416),
    ):
        with torch.device("meta"):
            net = build(find(name).model.name, vocabulary=words, special=1)
        assert sum(parameter.numel() for parameter in net.parameters()) == wanted


def test_laptops_keep_the_comparison_and_are_small():
    for name in named("wikitext2") + named("stackoverflow"):
        small, whole = find(f"{name}-laptop"), find(name)
        assert small.select_rows == ("wikitext2" in name)
        assert msgspec.structs.replace(small.data, max_sequences=whole.data.max_sequences) == whole.data
        assert small.rounds * small.fleet.per_round * small.data.max_sequences <= 20_000, "sequences trained on"
        assert small.evaluate.samples <= 1000
        widest = small.model.options["width"] // small.model.options["heads"]
        assert widest >= 16, "level e has a unit in every head"


def test_words_need_no_files():
    assert {name for name in WHOLE if name.endswith("-words")} == {
        f"{method}-words" for method in ("fedavg", "heterofl", "fedrolex", "fed-dropout")
    }
    assert not TEXTS["words"].layouts
