"""`NestlingStrategy`: rounds of Nestling as a strategy of Flower.

Flower's strategies average arrays of equal names and shapes, and always begin with round 1. Here every node has a slice
of its own, and a run may go on from a checkpoint. So `start` runs Nestling's loop and inherits nothing of Flower's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from nestling.cut.extract import State
from nestling.flower.array_codec import packed
from nestling.flower.flower_api import (
    ArrayRecord,
    ConfigRecord,
    Grid,
    GridLink,
    Message,
    MetricRecord,
    Result,
    Strategy,
    array_record,
)
from nestling.flower.link import Link


@dataclass(frozen=True, eq=False)
class Played:
    """What rounds return: the global model, and the record of every round."""

    model: State
    rounds: list[dict[str, Any]]


class NestlingStrategy(Strategy):  # type: ignore[misc]
    """Runs the rounds of an experiment on the nodes of a federation.

    Parameters
    ----------
    play
        Runs all rounds that are left, over a connection to the nodes.
    describe
        What is going to be run, in a sentence.
    """

    def __init__(self, play: Callable[[Link], Played], describe: str = "an experiment of Nestling") -> None:
        super().__init__()
        self._play, self._describe = play, describe

    def start(self, grid: Grid, initial_arrays: ArrayRecord | None = None, **settings: Any) -> Result:
        """Run all rounds; return the global model and the figures of every round.

        Parameters
        ----------
        grid
            The federation.
        initial_arrays, settings
            Not used, and refused: the experiment says what the model begins with, how many rounds there are, and how
            long they wait.
        """
        if initial_arrays is not None or settings:
            names = ", ".join([*(["initial_arrays"] if initial_arrays is not None else []), *settings])
            raise TypeError(f"NestlingStrategy.start takes a grid alone: the experiment says what {names} would say")
        self.summary()
        played = self._play(GridLink(grid))
        result = Result()
        result.arrays = array_record(packed(dict(played.model)))
        for line in played.rounds:
            result.train_metrics_clientapp[line["round"]] = _metrics(line)
            if "evaluation" in line:
                result.evaluate_metrics_serverapp[line["round"]] = _metrics(line["evaluation"])
        return result

    def summary(self) -> None:
        """Print what is going to be run."""
        print(f"Nestling: {self._describe}", flush=True)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> NoReturn:
        """Not used."""
        del server_round, arrays, config, grid
        raise _whole_rounds()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Not used."""
        del server_round, replies
        raise _whole_rounds()

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> NoReturn:
        """Not used."""
        del server_round, arrays, config, grid
        raise _whole_rounds()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Not used."""
        del server_round, replies
        raise _whole_rounds()


def _whole_rounds() -> NotImplementedError:
    return NotImplementedError("NestlingStrategy runs whole rounds: call its start(grid)")


def _metrics(line: Mapping[str, Any]) -> MetricRecord:
    """Return the numbers of a record as Flower's metrics."""
    return MetricRecord({name: value for name, value in line.items() if isinstance(value, int | float)})
