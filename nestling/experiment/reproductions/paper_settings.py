"""The papers' hyper-parameters, each with its source, and where presets differ from them.

``heterofl-settings.toml`` and its like hold groups: patterns of preset names, and settings as the paper, the authors'
published commands or, where neither says anything, a decision of ours gives them. Of several groups that fit a preset,
later ones win.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from nestling.data import DATASETS
from nestling.experiment.presets import PRESETS
from nestling.methods.registry import options
from nestling.settings import Experiment

# What every preset of a paper must be compared with it in.
REQUIRED = (
    "rounds",
    "model.name",
    "fleet.clients",
    "fleet.per_round",
    "fleet.assign",
    "data.partition",
    "data.augment",
    "local.optimizer",
    "local.lr",
    "local.momentum",
    "local.weight_decay",
    "local.clip_norm",
    "local.epochs",
    "local.batch_size",
    "local.schedule",
    "local.milestones",
)


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hyper-parameter: its dotted name, the paper's value and where it stands.

    `ours` is the preset's value where it differs, and `why` the reason. If `open`, nobody gives a value: the preset's
    is a decision of ours, which `source` explains.
    """

    key: str
    source: str
    value: Any = None
    ours: Any = None
    why: str = ""
    open: bool = False


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the presets whose names fit one of some patterns."""

    presets: list[str]
    settings: list[Setting]


@dataclass(frozen=True)
class Difference:
    """A setting in which presets differ from the paper; `why` is empty if the settings file does not list it."""

    preset: str
    setting: Setting
    actual: Any
    why: str

    @property
    def sentence(self) -> str:
        """The difference in words."""
        listed = self.why or "not listed"
        return f"{self.setting.key} is {self.actual!r} here, {self.setting.value!r} by {self.setting.source}: {listed}"


def settings_of(paper: str, preset: str) -> dict[str, Setting]:
    """Return what a paper says about a preset at paper scale: dotted name → setting.

    >>> settings_of("heterofl", "heterofl-mnist-iid-a-e")["local.lr"].value
    0.01
    """
    fitting = [group for group in _groups(paper) if any(fnmatchcase(preset, pattern) for pattern in group.presets)]
    return {setting.key: setting for group in fitting for setting in group.settings}


def differences(paper: str, presets: Iterable[str]) -> list[Difference]:
    """Return where presets differ from the paper, every difference once.

    >>> [one.setting.key for one in differences("heterofl", ["heterofl-mnist-iid-a-e"])]
    []
    """
    found: dict[tuple[str, str, str], Difference] = {}
    for preset in presets:
        for key, setting in settings_of(paper, preset).items():
            actual = value_of(PRESETS[preset](), key)
            if setting.open or actual == setting.value:
                continue
            why = setting.why if actual == setting.ours else ""
            found.setdefault((key, repr(actual), repr(setting.value)), Difference(preset, setting, actual, why))
    return list(found.values())


def value_of(experiment: Experiment, key: str) -> Any:
    """Return a setting by its dotted name, with what defaults of methods and of data sets stand for.

    >>> from nestling.experiment.presets import find
    >>> value_of(find("heterofl-cifar10-iid-a-e"), "data.augment")
    'crop-flip'
    """
    value: Any = msgspec.to_builtins(experiment)
    for word in key.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    if value is None and key.startswith("options."):  # the method's own default
        defaults = dict(option.split("=", 1) for option in options(experiment.method))
        name = key.removeprefix("options.")
        return ast.literal_eval(defaults[name]) if name in defaults else None
    if key == "data.augment" and value == "default":
        source = DATASETS.get(experiment.data.name)
        return "none" if source is None else source.augment
    return list(value) if isinstance(value, tuple) else value


@cache
def _groups(paper: str) -> tuple[Group, ...]:
    path = resources.files(__package__) / f"{paper}-settings.toml"
    if not path.is_file():
        return ()
    return tuple(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["group"], list[Group]))
