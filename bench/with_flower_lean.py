"""Flower's simulation engine, lean: the least that it must do for a round of HeteroFL, on `make bench PARTS=rounds`.

``.venv-flower/bin/python bench/with_flower_lean.py WORKLOAD full|quick`` says one line of JSON when it is ready, and
then the seconds of a round for every line that it reads. Flower gets the best of everything: slices are cut and merged
by Nestling, actors keep their models and data, there is one actor with one thread per core, and replies are looked for
every hundredth of a second. Starting up is not timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from bench.flower_lean_client import app as client_app
from bench.flower_simulation import simulate
from bench.rounds.contest import own_voice, serve
from bench.rounds.workloads import find, prepare
from nestling.cut import Tally, extract

PULL = 0.01  # seconds between looking for replies


class HeteroFL:
    """Every client gets the first units of every layer, as many as its level; all slices meet in one model."""

    def __init__(self, workload: str, quick: bool) -> None:
        self._told = {"workload": workload, "quick": quick}
        self._simulation = prepare(find(workload, quick))
        self.state = {
            name: tensor.detach().clone() for name, tensor in self._simulation.setup.model.state_dict().items()
        }
        self._tally = Tally(self._simulation.setup.axes, self.state)
        self.plans = {
            client: self._simulation.setup.submodel_plan(self._ratio(client))
            for client in self._simulation.fleet.sample(1)
        }

    def _ratio(self, client: int) -> float:
        return self._simulation.fleet.level(client, 1).ratio

    def run_round(self, number: int, grid: Grid) -> None:
        """Play a round, without what Flower's own strategies do around it."""
        self._tally.restart(self.state)
        for reply in _replies(grid, self._messages(number, grid)):
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
            client = reply.content["config"]["client"]
            self._tally.add(reply.content["slice"].to_torch_state_dict(), self.plans[client])
        self.state = self._tally.value()

    def _messages(self, number: int, grid: Grid) -> Iterable[Message]:
        slices: dict[Any, ArrayRecord] = {}
        for (client, plan), node in zip(self.plans.items(), grid.get_node_ids(), strict=True):
            if plan not in slices:  # a slice is packed once, whoever gets it
                slices[plan] = ArrayRecord(extract(self._simulation.setup.axes, plan, self.state))
            config = ConfigRecord({**self._told, "client": client, "ratio": self._ratio(client), "round": number})
            content = RecordDict({"slice": slices[plan], "config": config})
            yield Message(content, node, MessageType.TRAIN, group_id=str(number))


def _replies(grid: Grid, messages: Iterable[Message]) -> Iterable[Message]:
    """Send messages, and yield their replies as they come."""
    waiting = set(grid.push_messages(messages))
    while waiting:
        there = list(grid.pull_messages(waiting))
        for reply in there:
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply
        if not there:
            time.sleep(PULL)


def main() -> None:
    voice = own_voice()
    torch.set_num_threads(1)
    workload, size = sys.argv[1:]
    strategy = HeteroFL(workload, size == "quick")

    def serve_rounds(grid: Grid) -> None:
        while len(list(grid.get_node_ids())) < len(strategy.plans):
            time.sleep(PULL)
        rounds = iter(range(1, 1_000_000))

        def turn() -> dict[str, float]:
            start = time.perf_counter()
            strategy.run_round(next(rounds), grid)
            return {"round": time.perf_counter() - start}

        serve(turn, voice)

    simulate(serve_rounds, client_app, len(strategy.plans))


if __name__ == "__main__":
    main()
