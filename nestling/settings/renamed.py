"""Settings of version 0.1 that have another name now: files with the old names load, other uses name the new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nestling.errors import ConfigError

RENAMED = {
    "cohort": "group_clients",
    "select": "select_rows",
    "checkpoint": "checkpoint_every",
    "data.minimum": "data.min_samples",
    "data.samples": "data.max_samples",
    "data.most_per_client": "data.max_sequences",
    "data.length": "data.sequence_length",
    "data.vocabulary": "data.vocabulary_size",
    "data.positions": "data.loss_positions",
    "data.unlabelled": "data.public_share",
    "data.unlabelled_test": "data.public_from_test",
    "local.batch": "local.batch_size",
    "local.clip": "local.clip_norm",
    "local.factor": "local.lr_decay",
    "local.warmup": "local.warmup_rounds",
    "server.momentum": "server.beta1",
    "server.second": "server.beta2",
    "upload.share": "upload.fraction",
    "evaluate.statistics_clients": "evaluate.norm_clients",
    "evaluate.statistics_batch": "evaluate.norm_batch",
}


def with_new_names(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """Return nested settings with today's names, whichever they have.

    >>> with_new_names({"cohort": "off", "local": {"batch": 10, "lr": 0.1}})
    {'group_clients': 'off', 'local': {'batch_size': 10, 'lr': 0.1}}
    """
    renamed: dict[str, Any] = {}
    for key, value in settings.items():
        name = RENAMED.get(f"{table}{key}", f"{table}{key}").removeprefix(table)
        if name in renamed or (name != key and name in settings):
            raise ConfigError(f"{table}{key} is now called {table}{name}: set one of the two")
        renamed[name] = with_new_names(value, f"{key}.") if isinstance(value, Mapping) and not table else value
    return renamed


def refuse_old_name(name: str) -> None:
    """Raise where a dotted name is the old one of a setting.

    >>> refuse_old_name("local.batch")
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: the setting local.batch is now called local.batch_size
    """
    if name in RENAMED:
        raise ConfigError(f"the setting {name} is now called {RENAMED[name]}")


class RefusesOldNames(msgspec.StructMeta):
    """The metaclass of settings: arguments with an old name are refused by naming the new one.

    The class attribute ``table`` says which settings a class holds, such as ``"local."``.
    """

    table: str

    def __call__(cls, *values: Any, **settings: Any) -> Any:  # noqa: N805  (of a metaclass, self is a class)
        """Return the settings, or raise `ConfigError` where one has its old name."""
        for name in settings:
            refuse_old_name(f"{cls.table}{name}")
        return super().__call__(*values, **settings)
