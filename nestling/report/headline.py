"""The result in one sentence and a few large numbers: which method is best, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nestling.amounts import BYTES, amount
from nestling.report.legend import display_names
from nestling.report.level_results import LevelResult, level_results
from nestling.report.measures import digits, direction, is_share, title, written
from nestling.report.runs_by_seed import Experiment, Statistic


@dataclass(frozen=True)
class Headline:
    """A heading, sentences below it, and tiles: label, value and note of a large number."""

    heading: str
    sentences: list[str] = field(default_factory=list)
    tiles: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """An experiment with its final score and its sizes, the largest first."""

    name: str
    experiment: Experiment
    measure: str
    value: Statistic
    sizes: list[LevelResult]

    @property
    def mixed(self) -> bool:
        """Whether it serves devices of several sizes."""
        return len(self.sizes) > 1

    @property
    def way(self) -> int:
        return direction(self.measure, self.value.mean, self.experiment.runs[0].metrics) or 1

    @property
    def mean_over_sizes(self) -> float:
        return self.way * sum(size.value.mean for size in self.sizes if size.value) / len(self.sizes)

    @property
    def score(self) -> float:
        return self.way * self.value.mean

    def text(self, value: float, name: str = "") -> str:
        return written(name or self.measure, value, metrics=self.experiment.runs[0].metrics)

    def size_text(self, size: LevelResult) -> str:
        return self.text(size.value.mean, "worst_submodel") if size.value else "–"

    def cost(self, of: Callable[[Any], float | None]) -> float | None:
        statistic = self.experiment.over(of)
        return statistic.mean if statistic else None


def headline(groups: Sequence[Experiment]) -> Headline:
    """Return the heading, a sentence for every combination of dataset and partition, and tiles if there is only one.

    Methods for devices of several sizes are ranked by the mean over their sizes and compared with the largest model on
    every device, if that was run. Otherwise the global measure decides; the sentence says if a lead is smaller than the
    spread over seeds. Unfinished experiments count only if none is finished, and the sentence says so.

    >>> headline([]).heading
    'Nothing was measured yet'
    """
    names = display_names(groups)
    contests: dict[tuple[str, str, str], list[_Entry]] = {}
    for name, group in zip(names, groups, strict=True):
        lead = group.leading
        value = group.final(lead) if lead else None
        if lead and value:
            run = group.runs[0]
            sizes = [size for size in level_results(group) if size.value]
            entry = _Entry(name, group, lead, value, sizes)
            contests.setdefault((run.dataset, run.partition, lead), []).append(entry)
    if not contests:
        return Headline("Nothing was measured yet")
    results = [_result(where[0], where[1], contest) for where, contest in contests.items()]
    if len(results) == 1:
        return results[0]
    sentences = [f"{result.heading}. {result.sentences[0]}" for result in results]
    return Headline(f"{len(groups)} experiments on {len(results)} tasks", sentences)


def _result(dataset: str, partition: str, contest: Sequence[_Entry]) -> Headline:
    entered = [entry for entry in contest if entry.experiment.finished] or list(contest)
    mixed = [entry for entry in entered if entry.mixed]
    first, *others = sorted(mixed or entered, key=lambda entry: -(entry.mean_over_sizes if mixed else entry.score))
    rounds = max(run.rounds_done for run in first.experiment.counted)
    where = f"On {dataset or 'its data'}{f' ({partition})' if partition else ''} after {rounds} rounds"
    if not first.experiment.finished:
        where += " so far, unfinished"
    if mixed:
        return _mixed_result(where, entered, first)
    heading = f"{first.name} reaches {_score(first, 'accuracy')}"
    parts = [where]
    if others:
        parts.append(_lead(first, others[0]))
    if spent := first.cost(lambda run: run.bytes):
        parts.append(f"for {amount(spent, BYTES)} sent")
    return Headline(heading, [", ".join(parts) + "."], _tiles(first, None, None))


def _mixed_result(where: str, entered: Sequence[_Entry], best: _Entry) -> Headline:
    """Return the headline of the best method for devices of several sizes."""
    largest = max(size.cost.parameters for entry in entered for size in entry.sizes)
    model = best.experiment.runs[0].model
    alone = [entry for entry in entered if len(entry.sizes) == 1 and entry.experiment.runs[0].model == model]
    ceilings = [entry for entry in alone if entry.sizes[0].cost.parameters == largest]
    ceiling = max(ceilings, key=lambda entry: entry.score, default=None)
    smallest = best.sizes[-1].cost.parameters
    floors = [entry for entry in alone if entry.sizes[0].cost.parameters <= 1.5 * smallest]
    floor = max(floors, key=lambda entry: entry.score, default=None)
    scores = [size.value.mean for size in best.sizes if size.value]
    span = (
        f"its {len(best.sizes)} sizes, from {amount(smallest)} to {amount(best.sizes[0].cost.parameters)} parameters, "
        f"reach {best.text(min(scores), 'worst_submodel')} to {best.text(max(scores), 'worst_submodel')}"
    )
    sentences = [f"{where}, {span}."]
    if ceiling:
        heading = (
            f"{best.name} reaches {_score(best, 'accuracy')} with devices of every size: {_distance(best, ceiling)}"
        )
        more = f"{ceiling.name} reaches {_score(ceiling)}, but every device must train all {amount(largest)} parameters"
        if floor:
            more += f"; {floor.name}, which every device can train, reaches {_score(floor)}"
        sentences.append(f"{more}.")
    else:
        small = best.size_text(best.sizes[-1])
        heading = f"{best.name} reaches {_score(best, 'accuracy')}, and {small} with its smallest size"
    rivals = [entry for entry in entered if entry.mixed and entry is not best]
    if rivals:
        sentences.append(_rivals(best, rivals))
    return Headline(heading, [" ".join(sentences)], _tiles(best, ceiling, floor))


def _rivals(best: _Entry, rivals: Sequence[_Entry]) -> str:
    """Return how the best by the mean over sizes stands to the other methods for several sizes."""
    whole = max([best, *rivals], key=lambda entry: entry.score)
    lead = "lowest" if best.way < 0 else "highest"
    every = {entry.experiment.runs[0].method for entry in (best, *rivals)}
    kind = "methods" if len(every) > len(rivals) else "experiments"
    text = f"Of {len(rivals) + 1} {kind} for mixed devices it has the {lead} mean over sizes"
    if whole is not best:
        text += f"; {whole.name} has the best whole model, {_score(whole)}"
    elif any(entry.score == best.score for entry in rivals):
        text += " and a whole model as good as any"
    else:
        text += " and the best whole model"
    deviations = [entry.value.deviation or 0 for entry in (best, *rivals)]
    second = max(rivals, key=lambda entry: entry.mean_over_sizes)
    if best.mean_over_sizes - second.mean_over_sizes < max(deviations):
        text += f" (its lead over {second.name} is less than the spread over seeds)"
    return f"{text}."


def _distance(best: _Entry, ceiling: _Entry) -> str:
    gap = best.score - ceiling.score
    share = is_share(best.measure, best.value.mean, best.experiment.runs[0].metrics)
    far = f"{abs(100 * gap):.1f} points" if share else digits(abs(gap), 3)
    side = ("above" if best.way > 0 else "better than") if gap > 0 else ("below" if best.way > 0 else "behind")
    text = f"{far} {side} the large model on all of them" if gap else "level with the large model on all of them"
    sent, full = best.cost(lambda run: run.bytes), ceiling.cost(lambda run: run.bytes)
    if sent and full and sent < 0.95 * full:
        text += f", for {_share(sent / full)} of the data sent"
    return text


def _share(share: float) -> str:
    """Return a share in percent with two digits.

    >>> _share(0.2543), _share(0.0031)
    ('25 %', '0.31 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def _score(entry: _Entry, accuracy: str = "") -> str:
    """Return the score with the name of its measure, which is `accuracy` for global accuracy."""
    name = accuracy if entry.measure == "global_accuracy" else title(entry.measure)
    return f"{entry.text(entry.value.mean)} {name}".rstrip()


def _lead(first: _Entry, second: _Entry) -> str:
    gap = first.score - second.score
    if gap == 0:
        return f"level with {second.name}"
    share = is_share(first.measure, first.value.mean, first.experiment.runs[0].metrics)
    far = f"{100 * gap:.1f} points" if share else digits(gap, 3)
    spread = max(first.value.deviation or 0, second.value.deviation or 0)
    close = " (less than the spread over seeds)" if gap < spread else ""
    return f"{far} ahead of {second.name}{close}"


def _tiles(best: _Entry, ceiling: _Entry | None, floor: _Entry | None) -> list[dict[str, str]]:
    """Return the large numbers of the best method, beside those of the largest and the smallest model alone."""
    measure = "Whole model" if best.mixed else title(best.measure).capitalize()
    compared = f"{ceiling.name}: {ceiling.text(ceiling.value.mean)}" if ceiling else best.name
    tiles = [{"label": measure, "value": best.text(best.value.mean), "note": compared}]
    if best.mixed:
        small = best.sizes[-1]
        note = f"{_share(small.cost.parameters / best.sizes[0].cost.parameters)} of the parameters"
        if floor:
            note += f" · {floor.name}: {floor.text(floor.value.mean)}"
        tiles.append({"label": f"Smallest of {len(best.sizes)} sizes", "value": best.size_text(small), "note": note})
    costs: tuple[tuple[str, Callable[[Any], float | None], Callable[[float], str]], ...] = (
        ("Data sent", lambda run: run.bytes, lambda value: amount(value, BYTES)),
        ("Client computation", lambda run: run.client_macs, lambda value: f"{amount(value)} MACs"),
    )
    for label, of, show in costs:
        spent, full = best.cost(of), ceiling.cost(of) if ceiling else None
        if spent is None:
            continue
        if full:
            note = f"{show(spent)}, where {ceiling.name if ceiling else ''} needs {show(full)}"
            tiles.append({"label": label, "value": _share(spent / full), "note": note})
        else:
            tiles.append({"label": label, "value": show(spent), "note": "by all clients, in all rounds"})
    return tiles
