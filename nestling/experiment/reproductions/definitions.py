"""The definitions of reproductions: tables, their columns and rows, read from the TOML files of this folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from nestling.errors import ConfigError, nearest
from nestling.experiment.presets import PRESETS

Scale = Literal["laptop", "evening", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "evening", "paper")

PAPERS = ("digits", "grand", "privacy", "heterofl", "fedrolex", "nefl", "fedmorph", "time")  # the names of the files

# Known before training: means over the levels of a mix (HeteroFL, Section 4); plain means over the levels, however many
# clients train each (NeFL, Table 8); and the parameters of the whole model (NeFL, Table 3).
COSTS = ("ratio", "parameters", "flops", "space", "submodel_parameters", "submodel_flops", "whole_parameters")
# What clients received and computed until the best round, over what those of the reference row did (FedMorph).
SHARES = ("parameters_share", "flops_share")
# What runs took: minutes of the simulated clock, and what clients computed.
SPENT = ("simulated_minutes", "client_macs")
# What runs measure; the last two follow from their records: how far clients' own samples are ahead of the test set, and
# FedMorph's network as it is averaged, before a morph.
MEASURES = (
    *("global_accuracy", "local_accuracy", "worst_submodel", "mean_submodel", "perplexity", "accuracy"),
    *("generalization_gap", "averaged_accuracy"),
)


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a table.

    Attributes
    ----------
    name
        Its heading as printed; those of joined headings are joined.
    measure
        One of `COSTS`, `SHARES`, `SPENT` or `MEASURES`.
    run
        Which of a row's runs it is measured in; empty for the row's only run.
    unit
        ``percent`` (0.5 is printed as 50), ``share`` (as 0.5), ``count`` (as 1.6 M), ``MB`` or ``number``.
    digits
        Digits after the point; of a count, those of thousands, and of millions if there are any.
    macs
        FLOPs that the paper counts for a multiply-accumulate: 1 or 2.
    most_bytes
        Measured at the last evaluated round until which clients received at most so many bytes in all; 0: no limit.
    reach
        Of what runs took: that until the first evaluated round with so much global accuracy; 0: in all.
    """

    name: str
    measure: str
    run: str = ""
    unit: Literal["percent", "share", "count", "MB", "number"] = "percent"
    digits: int = 2
    macs: Literal[1, 2] = 1
    most_bytes: float = 0.0
    reach: float = 0.0

    def __post_init__(self) -> None:
        known = (*COSTS, *SHARES, *SPENT, *MEASURES)
        if self.measure not in known:
            raise ConfigError(f"the column {self.name!r} has no measure {self.measure!r}{nearest(self.measure, known)}")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a table.

    Attributes
    ----------
    label
        Its heading, one text per column of headings.
    runs
        The presets at paper scale that the row needs, by the names that columns use.
    paper
        The paper's figures, one text per column, with its own rounding; empty where it prints none.
    missing
        Why there is no preset for it, if there is none.
    note
        What is different from the paper's row.
    series, x
        Of a figure: the line that the row belongs to, and its place.
    """

    label: list[str]
    runs: dict[str, str] = {}
    paper: list[str] = []
    missing: str = ""
    note: str = ""
    series: str = ""
    x: float | None = None

    @property
    def name(self) -> str:
        """The label in one piece, as ``--rows`` takes it."""
        return "/".join(self.label)


class NoExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table or figure of a paper that no run can repeat.

    Attributes
    ----------
    name, where
        What it would be called, and its place in the paper.
    why
        What it shows instead of results, and where that is here.
    """

    name: str
    where: str
    why: str
    paper: str = ""


class Reproduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table or figure of a paper.

    Attributes
    ----------
    name
        What it is called by, such as ``heterofl-table1``.
    paper, where, title
        The paper, the place in it, and what it shows.
    headings
        The headings of the labels.
    columns, rows
        As printed.
    figure
        What is drawn: results by ``parameters``, by ``round``, by simulated ``time``, by the rows' ``x``, or by
        ``row``; or of every sub-model by its parameters (``submodels``).
    shown
        Which round's figures the table shows: that of the ``best`` result on the test set, or the ``final`` one.
    x_title, log_x
        The title of the rows' ``x``, and whether its axis is logarithmic.
    reference
        The label of the row of which `SHARES` are shares.
    scales
        The scales that it exists at.
    settings
        What all its runs change in their presets, as on the command line.
    needs, note
        What it needs besides its data; what to know about it.
    """

    name: str
    where: str
    title: str
    headings: list[str]
    columns: list[Column]
    rows: list[Row]
    paper: str = ""
    figure: Literal["parameters", "round", "time", "x", "row", "submodels"] = "row"
    shown: Literal["best", "final"] = "best"
    x_title: str = ""
    log_x: bool = False
    reference: str = ""
    scales: tuple[Scale, ...] = SCALES
    settings: list[str] = []
    needs: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{self.name} has two rows {twice!r}")
        for row in self.rows:
            if len(row.label) != len(self.headings) or len(row.paper) not in (0, len(self.columns)):
                raise ConfigError(f"the row {row.name!r} of {self.name} does not fit its headings or columns")
            if not row.runs and not row.missing:
                raise ConfigError(f"the row {row.name!r} of {self.name} has neither runs nor a reason why")

    @property
    def needs_no_run(self) -> bool:
        """Whether all its columns are known before training."""
        return all(column.measure in COSTS for column in self.columns)

    @property
    def file(self) -> str:
        """The paper's name in the names of files and reproductions."""
        return self.name.partition("-")[0]

    def select(self, patterns: Iterable[str]) -> list[Row]:
        """Return the rows whose names are given, in the order of the table; all of them if none is given.

        Names may be patterns such as ``a-e/*``, and several may be joined by commas.

        >>> [row.name for row in find("heterofl-table1").select(["a,a-e"])]
        ['a', 'a-e']
        """
        chosen = _chosen(f"{self.name} has no row", [row.name for row in self.rows], patterns)
        return [row for row in self.rows if row.name in chosen]

    def without_weights(self) -> Reproduction:
        """Return this reproduction without the runs that start from pre-trained weights, for want of such.

        >>> objection(find("nefl-table1").without_weights().rows[-1], "paper").partition(":")[0]
        'it starts from pre-trained weights'
        """
        reason = "it starts from pre-trained weights: give them as model.weights=FILE, one call per model"
        missing: dict[str, Any] = {"runs": {}, "missing": reason}
        rows = [msgspec.structs.replace(row, **(missing if _from_weights(row) else {})) for row in self.rows]
        return msgspec.structs.replace(self, rows=rows)

    def with_columns(self, patterns: Iterable[str]) -> Reproduction:
        """Return this reproduction with the columns whose names are given, as `select` takes rows.

        Rows keep the runs that these columns need; those that need none of them are left out.

        >>> part = find("fedrolex-table3").with_columns(["Low CIFAR-10"])
        >>> part.rows[3].name, part.rows[3].runs, part.rows[3].paper
        ('HeteroFL', {'l10': 'heterofl-cifar10-low-a-b-c-d-e'}, ['73.19 ± 1.71'])
        """
        chosen = _chosen(f"{self.name} has no column", [column.name for column in self.columns], patterns)
        places = [place for place, column in enumerate(self.columns) if column.name in chosen]
        columns = [self.columns[place] for place in places]
        # costs are known before training: the runs are those of the other columns, if there are any
        needing = [column for column in columns if column.measure not in COSTS] or columns
        rows = []
        for row in self.rows:
            names = {column.run or next(iter(row.runs), "") for column in needing}
            runs = {run: preset for run, preset in row.runs.items() if run in names}
            if runs or row.missing:
                paper = [row.paper[place] for place in places] if row.paper else []
                rows.append(msgspec.structs.replace(row, runs=runs, paper=paper))
        return msgspec.structs.replace(self, columns=columns, rows=rows)


def _from_weights(row: Row) -> bool:
    return any("-pretrained" in preset for preset in row.runs.values())


def _chosen(complaint: str, names: Sequence[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that some patterns name, each of which may be several with commas; all without patterns."""

    def matching(pattern: str) -> set[str]:
        return {pattern} if pattern in names else {name for name in names if fnmatchcase(name, pattern)}

    chosen: set[str] = set()
    for pattern in patterns:
        whole = matching(pattern)
        for part in [pattern] if whole else [part.strip() for part in pattern.split(",")]:
            matches = whole or matching(part)
            if not matches:
                raise ConfigError(f"{complaint} {part!r}{nearest(part, names)}")
            chosen |= matches
    return chosen or set(names)


def preset_at(name: str, scale: Scale) -> str:
    """Return the name of a preset at a scale.

    >>> preset_at("heterofl-mnist-iid-a-e", "laptop"), preset_at("heterofl-mnist-iid-a-e", "paper")
    ('heterofl-mnist-iid-a-e-laptop', 'heterofl-mnist-iid-a-e')
    """
    return name if scale == "paper" or name.endswith("-digits") else f"{name}-{scale}"


def objection(row: Row, scale: Scale) -> str:
    """Return why a row cannot be run at a scale, in one sentence; empty if it can.

    >>> objection(find("heterofl-table3").rows[0], "evening") != ""
    True
    """
    if row.missing:
        return row.missing
    absent = [name for preset in row.runs.values() if (name := preset_at(preset, scale)) not in PRESETS]
    if absent and len(absent) == len(row.runs):
        return f"there is no preset {absent[0]!r}"
    return ""


def presets_of(row: Row, scale: Scale) -> dict[str, str]:
    """Return the presets of a row that exist at a scale, by the names that columns use."""
    return {run: name for run, preset in row.runs.items() if (name := preset_at(preset, scale)) in PRESETS}


@cache
def reproductions() -> tuple[Reproduction, ...]:
    """Return all reproductions, paper by paper.

    >>> reproductions()[0].name
    'digits-demo'
    """
    return tuple(reproduction for paper in PAPERS for reproduction in _read(paper))


@cache
def no_experiments() -> tuple[NoExperiment, ...]:
    """Return the tables and figures of the papers that no run can repeat, paper by paper.

    >>> no_experiments()[0].name
    'heterofl-figure1'
    """
    return tuple(
        msgspec.convert({**one, "paper": data["paper"]}, NoExperiment)
        for data in map(_toml, PAPERS)
        for one in data.get("no_experiment", ())
    )


def find(name: str) -> Reproduction:
    """Return a reproduction by name.

    >>> find("heterofl-table1").where
    'Table 1'
    """
    by_name = {one.name: one for one in reproductions()}
    other = next((one for one in no_experiments() if one.name == name), None)
    if other is not None:
        raise ConfigError(f"{other.name} cannot be run: {other.why}")
    if name not in by_name:
        raise ConfigError(
            f"there is no reproduction {name!r}{nearest(name, by_name)}; see 'nestling list reproductions'"
        )
    return by_name[name]


def _toml(paper: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / f"{paper}.toml").read_text(encoding="utf-8"))


def _read(paper: str) -> Sequence[Reproduction]:
    data = _toml(paper)
    tables = [{**table, "paper": data["paper"]} for table in data["table"]]
    for table in tables:
        for row in table["rows"]:
            row["label"] = [row["label"]] if isinstance(row["label"], str) else row["label"]
    return msgspec.convert(tables, list[Reproduction])
