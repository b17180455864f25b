"""Flower's simulation engine, lean: the least that it can do with a HeteroFL strategy, on `nestling bench rounds`.

``.venv-flower/bin/python bench/with_flower_lean.py WORKLOAD full|quick`` says one line of JSON when it is ready, and
then the seconds of a round for every line that it reads. Flower gets the best of everything: slices are cut and merged
by Nestling, actors keep their models and data, there is one actor with one thread per core, and replies are looked for
every hundredth of a second. Starting up is not timed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from tempfile import TemporaryDirectory
from typing import IO, Any

from nestling.bench.rounds.contest import own_voice, serve

VOICE = own_voice()  # before anything can print
HOME = TemporaryDirectory()
os.environ["FLWR_HOME"] = HOME.name  # Flower's own files, gone with this program

import torch  # noqa: E402
from flower_lean_client import app as client_app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import Result, Strategy  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from nestling.bench.rounds.workloads import find, prepare  # noqa: E402
from nestling.cut import Tally, extract  # noqa: E402

PULL = 0.01  # seconds between looking for replies


class HeteroFL(Strategy):
    """Every client gets the first units of every layer, as many as its level; all slices meet in one model."""

    def __init__(self, workload: str, quick: bool) -> None:
        self._told = {"workload": workload, "quick": quick}
        self._made = prepare(find(workload, quick))
        self._state = {name: tensor.detach().clone() for name, tensor in self._made.model.state_dict().items()}
        self._tally = Tally(self._made.axes, self._state)
        self._plans = {client: self._made.submodel(self._ratio(client)) for client in self._made.sample(1)}

    def _ratio(self, client: int) -> float:
        return self._made.level(client, 1).ratio

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        slices: dict[Any, ArrayRecord] = {}
        for (client, plan), node in zip(self._plans.items(), grid.get_node_ids(), strict=True):
            if plan not in slices:  # a slice is packed once, whoever gets it
                slices[plan] = ArrayRecord(extract(self._made.axes, plan, self._state))
            told = ConfigRecord({**self._told, "client": client, "ratio": self._ratio(client), "round": server_round})
            content = RecordDict({"slice": slices[plan], "told": told})
            yield Message(content, node, MessageType.TRAIN, group_id=str(server_round))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[None, None]:
        self._tally.restart(self._state)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
            client = reply.content["told"]["client"]
            self._tally.add(reply.content["slice"].to_torch_state_dict(), self._plans[client])
        self._state = self._tally.value()
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing is logged."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, voice: IO[str] = sys.stdout, **_: Any) -> Result:
        """Play a round for every line on stdin."""
        while len(list(grid.get_node_ids())) < len(self._plans):
            time.sleep(PULL)
        rounds = iter(range(1, 1_000_000))

        def turn() -> dict[str, float]:
            number, start = next(rounds), time.perf_counter()
            messages = self.configure_train(number, initial_arrays, ConfigRecord(), grid)
            self.aggregate_train(number, _replies(grid, messages))
            return {"round": time.perf_counter() - start}

        serve(turn, voice)
        return Result()


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
    torch.set_num_threads(1)
    workload, size = sys.argv[1:]
    strategy = HeteroFL(workload, size == "quick")
    server_app = ServerApp()

    @server_app.main()
    def run(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(), voice=VOICE)

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(strategy._plans),
        backend_config={
            "init_args": {"address": "local", "num_cpus": cores},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
