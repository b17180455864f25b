"""Flower as people use it, on the workloads of `make bench PARTS=rounds`: HeteroFL as a strategy derived from FedAvg.

``.venv-flower/bin/python bench/with_flower.py WORKLOAD full|quick`` says one line of JSON when it is ready, and then
the seconds of a round for every line that it reads. Rounds are those of Flower's own `Strategy.start`, with its own way
to send and receive. The strategy cuts and averages as Flower's published HeteroFL baseline does, and clients are as in
its examples (`bench.flower_client`). Starting up is not timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from bench.flower_client import app as client_app
from bench.flower_simulation import simulate
from bench.rounds.contest import Laps, own_voice
from bench.rounds.dictionaries import Average, cut, index_lists
from bench.rounds.workloads import find, prepare
from nestling.experiment.simulation import Simulation

ROUNDS = 1_000_000  # more than anybody will ask for


class HeteroFL(FedAvg):
    """Every node gets the first units of every layer, as many as it can carry; all slices meet in one model.

    Parameters
    ----------
    simulation
        The workload.
    rates
        Node → the share of the model's width that it can carry.
    """

    def __init__(self, simulation: Simulation, rates: dict[int, float]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._rates = rates
        self._lists = {
            rate: index_lists(simulation.setup.axes, simulation.setup.submodel_plan(rate))
            for rate in set(rates.values())
        }
        self._state: dict[str, torch.Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["server-round"] = server_round
        self._state = arrays.to_torch_state_dict()
        for node, rate in self._rates.items():
            small = ArrayRecord(cut(self._state, self._lists[rate]))
            content = RecordDict({self.arrayrecord_key: small, self.configrecord_key: config})
            yield Message(content, node, MessageType.TRAIN)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        valid, failed = self._check_and_log_replies(replies, is_train=True)
        if failed:
            raise RuntimeError(f"a client failed: {failed[0].error.reason}")
        average = Average(self._state)
        for reply in valid:
            rate = self._rates[reply.metadata.src_node_id]
            average.add(reply.content[self.arrayrecord_key].to_torch_state_dict(), self._lists[rate])
        metrics = self.train_metrics_aggr_fn([reply.content for reply in valid], self.weighted_by_key)
        return ArrayRecord(average.value()), metrics


def ask(grid: Grid, clients: int, config: ConfigRecord) -> dict[int, float]:
    """Ask every node what it can carry, once all are there."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    content = RecordDict({"config": config})
    replies = grid.send_and_receive([Message(content, node, MessageType.QUERY) for node in nodes])
    return {reply.metadata.src_node_id: reply.content["metrics"]["rate"] for reply in replies}


class Over(Exception):
    """No more rounds are asked for."""


def main() -> None:
    voice = own_voice()
    torch.set_num_threads(1)
    workload, size = sys.argv[1:]
    simulation = prepare(find(workload, size == "quick"))
    config = ConfigRecord({"workload": workload, "quick": size == "quick"})
    laps = Laps(voice)

    def between_rounds(server_round: int, arrays: ArrayRecord) -> None:
        if not laps.next():
            raise Over

    def serve(grid: Grid) -> None:
        strategy = HeteroFL(simulation, ask(grid, simulation.fleet.clients, config))
        arrays = ArrayRecord(simulation.setup.model.state_dict())
        with suppress(Over):
            strategy.start(grid, arrays, ROUNDS, train_config=config, evaluate_fn=between_rounds)

    simulate(serve, client_app, simulation.fleet.clients)


if __name__ == "__main__":
    main()
