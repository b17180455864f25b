"""The papers' hyper-parameters, each with its source, and where presets differ from them.

``heterofl-settings.toml`` and its like hold groups: patterns of preset names, and settings as the paper, the authors'
published commands or, where neither says anything, a decision of ours gives them. Of several groups that fit a preset,
later ones win.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from nestling.data import DATASETS
from nestling.experiment.presets import PRESETS
from nestling.experiment.presets.mixes import as_papers_write
from nestling.experiment.reproductions.expected_cost import whole_model
from nestling.methods import make
from nestling.methods.parts.masked_loss import MaskedLoss
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
    "local.lr_decay",
    "levels",
    "parameters",
    "loss",
)


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hyper-parameter: its dotted name, the paper's value and where it stands.

    `ours` is the preset's value where it differs, and `why` the reason. If `open`, nobody gives a value: the preset's
    is a decision of ours, which `source` explains. If `named`, the value is what the preset's name says.

    Three keys are no settings: ``levels``, as the papers write them; ``parameters`` of the whole model; and ``loss``,
    which is ``masked`` or ``plain``.
    """

    key: str
    source: str
    value: Any = None
    ours: Any = None
    why: str = ""
    open: bool = False
    named: bool = False


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
    distinct: dict[tuple[str, str, str], Difference] = {}
    for preset in presets:
        for key, setting in settings_of(paper, preset).items():
            actual = value_of(PRESETS[preset](), key)
            if setting.open or actual == setting.value or (setting.named and f"-{actual}-" in f"{preset}-"):
                continue
            why = setting.why if actual == setting.ours else ""
            distinct.setdefault((key, repr(actual), repr(setting.value)), Difference(preset, setting, actual, why))
    return list(distinct.values())


def value_of(experiment: Experiment, key: str) -> Any:
    """Return a setting by its dotted name, or what follows from settings (see `Setting`).

    Defaults of methods and of data sets are replaced by what they stand for.

    >>> from nestling.experiment.presets import find
    >>> value_of(find("heterofl-cifar10-iid-a-e"), "data.augment")
    'crop-flip'
    """
    if key in _DERIVED:
        return _DERIVED[key](experiment)
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


def _levels(experiment: Experiment) -> str:
    by_level = make(experiment.method, experiment.options).plan.by_level
    return as_papers_write(experiment.model.width, experiment.fleet.levels if by_level else "a")


def _loss(experiment: Experiment) -> str:
    parts = make(experiment.method, experiment.options).parts
    return "masked" if any(isinstance(part, MaskedLoss) for part in parts) else "plain"


_DERIVED: dict[str, Callable[[Experiment], Any]] = {
    "levels": _levels,
    "parameters": lambda experiment: whole_model(experiment)[0],
    "loss": _loss,
}


@cache
def _groups(paper: str) -> tuple[Group, ...]:
    path = resources.files(__package__) / f"{paper}-settings.toml"
    if not path.is_file():
        return ()
    return tuple(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["group"], list[Group]))
