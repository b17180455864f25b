"""Measures by name: their title, whether higher is better, and how they are formatted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """A metric as summary.json names it: which direction is better, and whether it is written in percent."""

    name: str
    better: Literal["higher", "lower"]
    percent: bool = False


Metrics = Sequence[Metric]  # of a run: the first is the one that it is judged by; empty for runs of version 0.1


TITLES = {
    "global_accuracy": "global accuracy",
    "worst_submodel": "worst sub-model",
    "mean_submodel": "mean sub-model",
    "local_accuracy": "local accuracy",
}


def title(name: str) -> str:
    """Return the title of a measure.

    >>> title("mean_submodel"), title("masked_perplexity")
    ('mean sub-model', 'masked perplexity')
    """
    return TITLES.get(name, name.replace("_", " "))


def direction(name: str, value: float, metrics: Metrics = ()) -> int:
    """Return 1 if higher is better (accuracies), -1 if lower is (losses, perplexities), 0 if that is unknown.

    The metrics of a run say so. For runs without any the name does; names of sub-models' measures do not, but no
    accuracy is above 1 and no perplexity below.

    >>> direction("global_accuracy", 0.9), direction("perplexity", 9.1), direction("worst_submodel", 40.2)
    (1, -1, -1)
    >>> direction("worst_submodel", 0.4, [Metric("rmse", "lower")])
    -1
    """
    metric = _metric(name, metrics)
    if metric is not None:
        return 1 if metric.better == "higher" else -1
    if "loss" in name or "perplexity" in name:
        return -1
    if "accuracy" in name:
        return 1
    if name.endswith("submodel"):
        return 1 if value <= 1 else -1
    return 0


def leading(names: Iterable[str], metrics: Metrics = ()) -> str | None:
    """Return the measure that a run is judged by: its first metric, or else its global accuracy or a perplexity.

    >>> leading(["global_loss", "global_accuracy"]), leading(["global_loss", "perplexity"]), leading(["global_loss"])
    ('global_accuracy', 'perplexity', None)
    >>> leading(["global_loss", "rmse"], [Metric("rmse", "lower")])
    'rmse'
    """
    known = list(names)
    first = metrics[0].name if metrics else "accuracy"
    for name in (f"global_{first}", first) if metrics else ("global_accuracy",):
        if name in known:
            return name
    return next((name for name in known if "perplexity" in name), None)


def written(name: str, value: float, deviation: float | None = None, metrics: Metrics = ()) -> str:
    """Return a formatted measure: accuracies in percent, others with four digits; with ± if there is a deviation.

    >>> written("global_accuracy", 0.9123, 0.004), written("perplexity", 23.4567), written("perplexity", 1145.2, 46.2)
    ('91.2 ± 0.4 %', '23.46', '1,145 ± 46')
    """
    if is_share(name, value, metrics):
        spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
        return f"{100 * value:.1f}{spread} %"
    return digits(value, 4) + ("" if deviation is None else f" ± {digits(deviation, 2)}")


def is_share(name: str, value: float, metrics: Metrics = ()) -> bool:
    """Return whether a measure is written in percent."""
    metric = _metric(name, metrics)
    return direction(name, value) == 1 if metric is None else metric.percent


def _metric(name: str, metrics: Metrics) -> Metric | None:
    if metrics and name.endswith("submodel"):
        return metrics[0]
    base = name.removeprefix("validation_").removeprefix("global_")
    return next((metric for metric in metrics if metric.name == base), None)


def digits(value: float, count: int) -> str:
    """Return a number with `count` digits, without an exponent if it is large.

    >>> digits(12345.6, 3), digits(0.01234, 3)
    ('12,346', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 10 ** (count - 1) else f"{value:.{count}g}"
