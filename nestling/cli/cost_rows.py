"""What the levels of a model cost under a method, and the means of a mix, as the papers' tables print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nestling.budgets import Budget
from nestling.cli.screen import working
from nestling.cli.target import Target, load
from nestling.errors import MethodError, NestlingError
from nestling.settings import as_value

if TYPE_CHECKING:
    from nestling.axes import AxisMap
    from nestling.cut import Plan
    from nestling.fleet import Mix

_MEANS = ("parameters", "share", "bytes", "macs", "activations", "memory")


def method_options(settings: Iterable[str], method: str | None) -> dict[str, Any]:
    """Read the options of a method, written as for `nestling run`.

    >>> method_options(["options.variant=D", "options.learn_steps=false"], "nefl")
    {'variant': 'D', 'learn_steps': False}
    """
    options = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        name = key.strip().removeprefix("options.")
        if not equals or name == key.strip() or not name:
            raise NestlingError(f"{setting!r} is no option of a method: write options.variant=D; models have --set")
        if method is None:
            raise NestlingError(f"{setting!r} is an option of a method: name it, such as --method nefl")
        options[name] = as_value(value)
    return options


def levels_of_file(path: str) -> dict[str, float | Budget]:
    """Return what the rows of a file of levels carry: their name → a ratio or a budget.

    Of a file of devices, which choose among its levels, these are the levels.
    """
    from nestling.fleet import read_levels_file  # noqa: PLC0415

    file = read_levels_file(path)
    if file.devices:
        return {level.name: level.ratio for level in file.levels}
    return {row.name: row.level.ratio if row.level else row.budget or 1.0 for row in file.rows}


def level_rows(
    name: str,
    levels: Mapping[str, float | Budget],
    batch: int,
    options: dict[str, Any],
    *,
    method: str | None = None,
    settings: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every level.

    Parameters
    ----------
    name, options
        The model and its options.
    levels
        The levels: name → ratio, or a budget, whose level is the widest that meets it.
    batch
        Samples of a training step.
    method, settings
        The method whose sub-models these are, and its options; without one, prefixes of every axis.
    """
    with working(f"tracing {name}"):
        import nestling  # noqa: PLC0415

        target = load(name, options, shapes_only=True)
        axes = nestling.trace(target.model, *target.args, **target.kwargs)
        if method is not None and any(isinstance(limit, Budget) for limit in levels.values()):
            raise NestlingError("budgets are met by width: leave out --method, or use 'nestling fit'")
        ratios = [
            nestling.fit(target.model, axes, limit, *target.args, batch=batch, by="width", **target.kwargs).ratio
            if isinstance(limit, Budget)
            else limit
            for limit in levels.values()
        ]
        plans = _plans(target, axes, ratios, method, settings or {})
    whole = sum(parameter.numel() for parameter in target.model.parameters())
    rows = []
    for level, ratio, (plan, source) in zip(levels, ratios, plans, strict=True):
        with working(f"measuring {name} at level {level}"):
            costs = nestling.cost(target.model, axes, plan, *target.args, batch=batch, **target.kwargs)
        rows.append(
            {
                "level": level,
                "width": ratio,
                "parameters": costs.parameters,
                "share": costs.parameters / whole,
                "bytes": costs.bytes,
                "macs": costs.macs // batch,
                "activations": costs.activations,
                "memory": costs.memory,
                "batch": batch,
            }
            | ({"submodel": source} if source else {})
        )
    return rows


def with_means(label: str, rows: Sequence[dict[str, Any]], mix: Mix) -> list[dict[str, Any]]:
    """Return the rows of a mix with what papers print of one, and a last row of the means over its clients.

    The ratio is that to the parameters of the mix's largest level; FLOPs are two for a multiply-accumulate; space
    is that of parameters of 32 bits, without statistics.

    >>> from nestling.fleet import parse_mix
    >>> mix = parse_mix("a-b")
    >>> rows = [dict.fromkeys(_MEANS, value) | {"level": level.name} for (level, _), value in zip(mix, (4, 1))]
    >>> mean = with_means("a-b", rows, mix)[-1]
    >>> mean["level"], mean["parameters"], mean["ratio"], mean["flops"]
    ('a-b', 2.5, 0.625, 5.0)
    """
    shares = [share for _, share in mix]
    mean = {name: sum(share * row[name] for share, row in zip(shares, rows, strict=True)) for name in _MEANS}
    largest = max(row["parameters"] for row in rows)
    pairs = [*zip(shares, rows, strict=True), (1.0, {"level": label, **mean})]
    return [
        row
        | {
            "clients": share,
            "ratio": row["parameters"] / largest,
            "flops": 2 * row["macs"],
            "space": 4 * row["parameters"],
        }
        for share, row in pairs
    ]


def _plans(
    target: Target, axes: AxisMap, ratios: Sequence[float], method: str | None, settings: dict[str, Any]
) -> list[tuple[Plan, str]]:
    """Return the plan of every level, and what it was made from if the method says so."""
    import nestling  # noqa: PLC0415

    if method is None:
        return [(nestling.plan(axes, width=ratio), "") for ratio in ratios]
    from nestling.methods import Setup, make  # noqa: PLC0415
    from nestling.tasks import Classification  # noqa: PLC0415

    if not target.args or target.kwargs:
        raise NestlingError("--method needs a model that is called with one tensor, not with keyword arguments")
    made = make(method, settings)
    if not made.plan.by_level and any(ratio != 1 for ratio in ratios):
        raise MethodError(f"{method} trains the same slice at all levels: use --levels a")
    setup = Setup(target.model, axes, target.args[0], Classification(2), made, ratios=tuple(sorted(ratios)))
    return [(setup.submodel_plan(ratio), made.plan.submodel_source(setup, ratio)) for ratio in ratios]
