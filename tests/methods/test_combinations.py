"""Methods, merges, formats of uploads and buffered rounds are accepted together or refused as docs/security.md says."""

import itertools
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import get_args

import pytest
import torch

from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import find, simulation
from nestling.experiment.runner import run
from nestling.experiment.simulated_fleet import simulated_fleet
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import Participation
from nestling.methods import make, names
from nestling.methods.registry import has_option
from nestling.nets import MODELS
from nestling.settings.structs import Format
from tests.quick import mostly_slow

pytest.importorskip("dp_accounting")
DOCUMENT = Path(__file__).parents[2] / "docs/security.md"
MERGES = ("dp", "secagg", "median", "trimmed-mean", "krum", "multi-krum", "clip-norm")
METHODS = {name: [f"{name}-digits"] for name in names()} | {"feddyn": ["fedavg-digits", "parts=feddyn"]}
# A feature is a further entry: its name in the table, and the settings that turn it on ("" turns nothing on).
FEATURES = {
    "merge": {"": [], **{name: [f"parts={name}:noise=1" if name == "dp" else f"parts={name}"] for name in MERGES}},
    "upload": {"": [], **{name: [f"upload.format={name}"] for name in get_args(Format) if name != "dense"}},
    "rounds": {"": [], "server.buffer": ["server.buffer=4", "fleet.devices=laptop"]},
}
GROUPS = {"compressed": [name for name in FEATURES["upload"] if name]}  # columns that stand for several features
SETTINGS = {
    "masked=false": "options.masked=false",
    "norm=gn": "model.options.norm=gn",
    "merge=factors": "options.merge=factors",
}
MOST_RUNS = 60
TWO_LEVELS = {"nefl": "0.4-1", "depthfl": "0.2-1", "fedmorph": "a", "fedmorphprox": "a"}  # of the others: a-c


@cache
def table():
    """The cells of the table: two names → what stands there."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Combinations")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    head, cells = [named(cell) for cell in rows[0]], {}
    for row in rows[2:]:
        for columns, cell in zip(head[1:], row[1:], strict=True):
            for one, other in itertools.product(named(row[0]), columns):
                if cell:
                    assert frozenset((one, other)) not in cells, f"{one} × {other} stands in the table twice"
                    cells[frozenset((one, other))] = cell
    return cells


def named(cell):
    return re.findall(r"`(.+?)`", cell) or GROUPS.get(cell, [])


def pairs(combination):
    return [frozenset(pair) for pair in itertools.combinations(filter(None, combination), 2)]


def refused(pair):
    return table()[pair].isdecimal()


def remedies(combination):
    """The settings with which the pairs of a combination go together."""
    keys = [key for pair in pairs(combination) if table()[pair] != "✓" for key in table()[pair].split()]
    return [SETTINGS[key] for key in dict.fromkeys(keys) if key in SETTINGS]


def all_remedies(method):
    """All settings of the table that a method has: what is refused nevertheless is refused for its own reason."""
    preset = find(METHODS[method][0])
    has = {"options": partial(has_option, preset.method), "model": MODELS[preset.model.name].options.__contains__}
    options = {setting: setting.partition("=")[0].split(".") for setting in SETTINGS.values()}
    return [setting for setting, path in options.items() if has[path[0]](path[-1])]


def combinations(method):
    return [(method, *features) for features in itertools.product(*FEATURES.values())]


def settings_of(combination):
    """The settings of a combination; those of its parts are joined."""
    method, *features = combination
    chosen = METHODS[method][1:] + [
        one for feature, name in zip(FEATURES.values(), features, strict=True) for one in feature[name]
    ]
    parts = [one.removeprefix("parts=") for one in chosen if one.startswith("parts=")]
    rest = [one for one in chosen if not one.startswith("parts=")]
    return [*rest, f"parts={','.join(parts)}"] if parts else rest


@cache
def simulated(method, *settings):
    with collect():
        return simulate(
            Overrides(find(METHODS[method][0]).with_settings([*settings, "fleet.per_round=20", "data.max_samples=200"]))
        )


def complaint(combination, *settings):
    """Why a combination is refused, without data, tracing and training; empty if it is accepted."""
    base = simulated(combination[0], *settings)
    try:
        chosen = base.settings.with_settings(settings_of(combination))
        method = make(chosen.method, chosen.options, chosen.parts)
        setup = replace(base.setup, method=method, upload=chosen.upload, server=chosen.server)
        fleet, devices, _ = simulated_fleet(chosen, setup)
        setup = replace(setup, participation=Participation.of(fleet) if devices is None else None)
        with collect():
            simulation._check(replace(base, settings=chosen, setup=setup, fleet=fleet, devices=devices))
    except NestlingError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("method", mostly_slow(METHODS, quick=3))
def test_every_combination_is_accepted_or_refused_as_the_table_says(method):
    for combination in combinations(method):
        wrong = [sorted(pair) for pair in pairs(combination) if refused(pair)]
        help_ = all_remedies(method) if wrong else remedies(combination)
        sentence = complaint(combination, *help_)
        assert bool(sentence) == bool(wrong), (combination, sentence)
        if wrong:
            assert any(all(name in sentence for name in pair) for pair in wrong), (combination, sentence)
            assert "\n" not in sentence
        elif help_:
            sentence = complaint(combination)
            assert any(setting in sentence for setting in help_), (combination, sentence)
            assert method in sentence


def test_two_merges_are_refused_by_name():
    for one, other in itertools.combinations(MERGES, 2):
        assert refused(frozenset((one, other)))
        parts = ",".join(FEATURES["merge"][name][0].removeprefix("parts=") for name in (one, other))
        with pytest.raises(NestlingError, match=f"not {one} and {other}"):
            make("fedavg", {}, parts)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("parts=dp:noise=1 select_rows=true", "rows that clients select tell which classes they hold"),
        ("parts=dp:noise=1 fleet.devices=laptop options.masked=false model.options.norm=gn", "leave out fleet.devices"),
        ("parts=clip-norm server.fan_in=4", "server.fan_in=4 merges some before they reach it"),
        ("parts=median server.weighting=width", "which server.weighting=width contradicts"),
    ],
)
def test_what_is_refused_whatever_the_method(settings, words):
    with pytest.raises(NestlingError, match=words):
        simulate(Overrides(find("heterofl-digits").with_settings([*settings.split(), "data.max_samples=200"])))


def test_the_table_has_every_pair_and_every_reason():
    listed = [(method, feature) for method in METHODS for one in FEATURES.values() for feature in one if feature]
    kinds = [[name for name in one if name] for one in FEATURES.values()]
    listed += [pair for one, other in itertools.combinations(kinds, 2) for pair in itertools.product(one, other)]
    listed += list(itertools.combinations(MERGES, 2))
    assert table().keys() == {frozenset(pair) for pair in listed}
    numbers = {cell for cell in table().values() if cell.isdecimal()}
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Combinations")[2]
    assert set(re.findall(r"^(\d+)\. ", text, re.M)) == numbers


def chosen_runs():
    """At most so many of the accepted combinations, in which as many pairs as possible occur."""
    accepted = [one for method in METHODS for one in combinations(method) if not any(map(refused, pairs(one)))]
    chosen, seen = [], set()
    while accepted and len(chosen) < MOST_RUNS:
        best = max(accepted, key=lambda one: len(set(pairs(one)) - seen))
        accepted.remove(best)
        chosen.append(best)
        seen |= set(pairs(best))
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("combination", chosen_runs(), ids="×".join)
def test_accepted_combinations_run(combination):
    method = combination[0]
    small = [f"fleet.levels={TWO_LEVELS.get(method, 'a-c')}", "fleet.clients=12", "fleet.per_round=12", "rounds=2"]
    small += ["data.max_samples=400", "local.epochs=1", "evaluate.every=2", "evaluate.samples=100"]
    preset = find(METHODS[method][0]).with_settings([*small, *remedies(combination)])
    with collect():
        result = run(preset.with_settings(settings_of(combination)), quiet=True)
    setup = result.simulation.setup
    assert [line["clients"] for line in result.rounds] == [4, 4] if "server.buffer" in combination else [12, 12]
    assert 0 <= result.summary["final"]["global_accuracy"] <= 1
    assert all(bool(tensor.isfinite().all()) for tensor in result.state.values())
    shared = setup.parameters - setup.stay - setup.per_submodel
    if shared:  # what clients trained has arrived in the model
        assert any(not torch.equal(result.state[name], setup.model.state_dict()[name]) for name in shared)
