"""Presets: experiments by name, one file per paper; those of papers also as ``-laptop``, some as ``-evening``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from nestling.errors import ConfigError, nearest
from nestling.experiment.presets import (
    digits,
    fedmorph,
    fedrolex,
    grand,
    heterofl,
    nefl,
    stackoverflow,
    stragglers,
    wikitext,
    words,
)
from nestling.experiment.presets.evening import ROWS, evening
from nestling.experiment.presets.laptop import laptop
from nestling.experiment.presets.mixes import as_papers_write
from nestling.experiment.presets.preset import Preset
from nestling.methods import make
from nestling.settings import Experiment, from_file

__all__ = ["PRESETS", "Preset", "about", "evening", "every_preset", "find", "laptop", "rows"]

# the files of every paper, and how their experiments are made small
_PAPERS = (
    ((heterofl, wikitext), laptop),
    ((fedrolex, stackoverflow), laptop),
    ((nefl,), laptop),
    ((fedmorph,), fedmorph.small),
)


def every_preset() -> Iterator[Preset]:
    """Yield all presets: the demonstrations, then paper by paper all experiments, those for an evening, small ones."""
    yield from digits.presets()
    yield from words.presets()
    yield from stragglers.presets()
    yield from grand.presets()
    for files, small in _PAPERS:
        whole = [preset for file in files for preset in file.presets()]
        yield from whole
        yield from (
            Preset(evening(preset.experiment), f"{preset.repeats} (an evening)")
            for preset in whole
            if preset.name in ROWS
        )
        # small ones have a schedule of their own, so one of each row is enough
        rows_once = (preset for preset in whole if not preset.name.endswith(fedrolex.SECOND_SCHEDULE))
        yield from (Preset(small(preset.experiment), f"{preset.repeats} (small)") for preset in rows_once)


class _Presets(Mapping[str, Preset]):
    """All presets by name, made when first asked for: there are thousands, and most processes use none."""

    def __getitem__(self, name: str) -> Preset:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Preset]:
        return {preset.name: preset for preset in every_preset()}


PRESETS: Mapping[str, Preset] = _Presets()


def find(source: str) -> Experiment:
    """Return the experiment that a preset's name or a TOML file describes.

    >>> find("heterofl-digits").method
    'heterofl'
    >>> find("lg-fedavg-digit")
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: there is no preset or file 'lg-fedavg-digit'; did you mean 'lg-fedavg-digits' or ...
    """
    if source not in PRESETS and (source.endswith(".toml") or Path(source).is_file()):
        return from_file(source)
    return _preset(source)()


def about(name: str) -> dict[str, str | int]:
    """Return what a list of presets shows of one; levels count from model a, as the papers name them.

    >>> about("heterofl-cifar10-iid-b-e")["levels"], about("fedavg-mnist-iid-e")["levels"]
    ('b-e', 'e')
    >>> about("heterofl-cifar10-iid-b-e")["repeats"]
    'HeteroFL, Tables 2 and 8'
    """
    preset = _preset(name)
    experiment, data = preset.experiment, preset.experiment.data
    sized = make(experiment.method, experiment.options).plan.by_level  # otherwise everybody trains the whole model
    return {
        "name": name,
        "method": experiment.method,
        "data": f"{data.name}, {data.classes_per_client} classes each" if data.classes_per_client else data.name,
        "model": experiment.model.name,
        "levels": as_papers_write(experiment.model.width, experiment.fleet.levels if sized else "a"),
        "rounds": experiment.rounds,
        "repeats": f"{preset.repeats}; {preset.source}" if preset.source else preset.repeats,
    }


def rows() -> list[dict[str, str | int]]:
    """Return `about` of every preset, in the order of `PRESETS`.

    >>> rows()[0]["name"]
    'fedavg-digits'
    """
    return [about(name) for name in PRESETS]


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"there is no preset or file {name!r}{nearest(name, PRESETS)}")
    return PRESETS[name]
