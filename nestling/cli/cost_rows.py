"""What the levels of a model cost under a method, and the means of a mix, as the papers' tables print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nestling.budgets import Budget
from nestling.cli.screen import working
from nestling.cli.target import Target, load
from nestling.errors import MethodError, NestlingError
from nestling.settings import as_value

if TYPE_CHECKING:
    from nestling.axes import AxisMap
    from nestling.cut import Plan
    from nestling.fleet import Level, Mix

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


def level_rows(
    name: str,
    levels: Mapping[str, Level | Budget],
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
        The levels by their names; a budget stands for the largest level that meets it.
    batch
        Samples of a training step.
    method, settings
        The method whose sub-models these are, and its options; without one, prefixes of every axis.
    """
    with working(f"tracing {name}"):
        import nestling  # noqa: PLC0415

        target = load(name, options, shapes_only=True)
        axes = nestling.trace(target.model, *target.args, **target.kwargs)
        given = [level.ratio for level in levels.values() if not isinstance(level, Budget)]
        plan_of = _plan_maker(target, axes, given or [1.0], method, settings or {})
    whole = sum(parameter.numel() for parameter in target.model.parameters())
    rows = []
    for label, level in levels.items():
        with working(f"measuring {name} at level {label}"):
            ratio = _ratio_within(level, target, axes, batch, plan_of) if isinstance(level, Budget) else level.ratio
            plan, source = plan_of(ratio)
            costs = nestling.cost(target.model, axes, plan, *target.args, batch=batch, **target.kwargs)
        rows.append(
            {
                "level": label,
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


def _plan_maker(
    target: Target, axes: AxisMap, ratios: Sequence[float], method: str | None, settings: dict[str, Any]
) -> Callable[[float], tuple[Plan, str]]:
    """Return a function from a ratio to its plan, and what that was made from if the method says so."""
    import nestling  # noqa: PLC0415

    if method is None:
        return lambda ratio: (nestling.plan(axes, width=ratio), "")
    from nestling.methods import Setup, make  # noqa: PLC0415
    from nestling.tasks import Classification  # noqa: PLC0415

    if not target.args or target.kwargs:
        raise NestlingError("--method needs a model that is called with one tensor, not with keyword arguments")
    chosen = make(method, settings)
    if not chosen.plan.by_level and any(ratio != 1 for ratio in ratios):
        raise MethodError(f"{method} trains the same slice at all levels: use --levels a")
    setup = Setup(target.model, axes, target.args[0], Classification(2), chosen, ratios=tuple(sorted(ratios)))
    return lambda ratio: (setup.submodel_plan(ratio), chosen.plan.submodel_source(setup, ratio))


def _ratio_within(
    budget: Budget, target: Target, axes: AxisMap, batch: int, plan_of: Callable[[float], tuple[Plan, str]]
) -> float:
    """Return the largest ratio whose sub-model meets a budget."""
    from nestling.sizing import RatioPath, largest_plan  # noqa: PLC0415
    from nestling.sizing.search import model_meter  # noqa: PLC0415

    path = RatioPath(lambda ratio: plan_of(ratio)[0], refused=MethodError)
    meter = model_meter(target.model, axes, *target.args, batch=batch, **target.kwargs)
    return largest_plan(path, meter, budget).ratio
