"""The configuration of a Flower app: the keys of a run, which its author sets, and of a node, which its owner sets.

A run has the keys ``out`` (the run directory), ``settings`` (of the experiment, as on the command line) and those of
`RoundRules`, with hyphens: ``deadline = 600``, ``min-replies = 2``. A node has ``client`` or ``partition-id`` (its
number), ``memory`` (what training may use), ``level`` (the largest that it trains) and ``folder`` (for what it keeps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nestling.errors import ConfigError, nearest
from nestling.experiment.presets import find
from nestling.flower.node_worker import NodeConfig
from nestling.flower.nodes import RoundRules
from nestling.settings import Experiment

_RULES = {field.name.replace("_", "-"): field for field in fields(RoundRules)}
RUN_KEYS = ("out", "settings", *_RULES)


def configured(experiment: str | Path | Experiment, config: Mapping[str, Any]) -> Experiment:
    """Return an experiment with the settings of a run's configuration: ``settings = "rounds=3 local.lr=0.05"``.

    >>> configured("heterofl-digits", {"settings": "rounds=3"}).rounds
    3
    """
    unknown = [key for key in config if key not in RUN_KEYS]
    if unknown:
        raise ConfigError(f"there is no key {unknown[0]!r} of a run{nearest(unknown[0], RUN_KEYS)}")
    settings = experiment if isinstance(experiment, Experiment) else find(str(experiment))
    return settings.with_settings(str(config.get("settings", "")).split())


def rules_of(config: Mapping[str, Any]) -> RoundRules:
    """Return the rules in a run's configuration.

    >>> rules_of({"deadline": 60, "min-replies": 2}).min_replies
    2
    """
    values: dict[str, Any] = {}
    for key, field in _RULES.items():
        default: Any = field.default
        value = config.get(key, default)
        if type(value) is not type(default) and (type(value), type(default)) != (int, float):
            raise ConfigError(f"the key {key} of a run must be like {default!r}, not {value!r}")
        values[field.name] = type(default)(value)
    return RoundRules(**values)


def node_config(config: Mapping[str, Any]) -> NodeConfig:
    """Return what the owner of a node sets: its number, memory and largest level.

    >>> node_config({"partition-id": 3, "num-partitions": 5, "level": "c"})
    NodeConfig(client=3, memory='', level='c')
    """
    number = config.get("client", config.get("partition-id"))
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise ConfigError(f"the number of a client must be a whole number from 0, not {number!r}")
    return NodeConfig(number, str(config.get("memory", "")), str(config.get("level", "")))
