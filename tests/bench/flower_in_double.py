"""Rounds of both Flowers in double precision: ``python flower_in_double.py FOLDER`` writes the models that they make.

Its messages, apps and strategies are Flower's and ours; between them is no simulation but this process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save_file

from bench import flower_client, flower_lean_client, with_flower, with_flower_lean
from tests.bench.bench_cases import NARROW, double, in_double

ROUNDS = 2


class Here:
    """A grid whose nodes are in this process, in another order than the clients."""

    def __init__(self, app, clients):
        self._app = app
        self._nodes = {
            1000 - client: Context(
                run_id=1,
                node_id=1000 - client,
                node_config={"partition-id": client, "num-partitions": clients},
                state=RecordDict(),
                run_config={},
            )
            for client in reversed(range(clients))
        }
        self._replies = {}

    def get_node_ids(self):
        return list(self._nodes)

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())  # as Flower's own grid does it
            self._replies[message.metadata.message_id] = self._app(message, self._nodes[message.metadata.dst_node_id])
        return list(self._replies)

    def pull_messages(self, message_ids):
        return [self._replies.pop(one) for one in list(message_ids)]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def plain(simulation):
    grid, config = Here(flower_client.app, simulation.fleet.clients), ConfigRecord({"workload": "mnist", "quick": True})
    strategy = with_flower.HeteroFL(simulation, with_flower.ask(grid, simulation.fleet.clients, config))
    result = strategy.start(grid, ArrayRecord(simulation.setup.model.state_dict()), ROUNDS, train_config=config)
    assert all(0 < metrics["train_loss"] < 10 for metrics in result.train_metrics_clientapp.values())
    return result.arrays.to_torch_state_dict()


def lean(simulation):
    grid, strategy = Here(flower_lean_client.app, simulation.fleet.clients), with_flower_lean.HeteroFL("mnist", True)
    for number in range(1, ROUNDS + 1):
        strategy.run_round(number, grid)
    return strategy.state


def main():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # without which there are no messages
    with double():
        simulation = in_double(NARROW)
        for module in (flower_client, flower_lean_client, with_flower_lean):
            module.prepare = lambda workload: simulation
        torch.set_default_dtype(torch.float64)  # of the models that clients build
        for name, make in (("plain", plain), ("lean", lean)):
            state = {key: tensor.contiguous().clone() for key, tensor in make(simulation).items()}
            save_file(state, Path(sys.argv[1]) / f"{name}.safetensors")


if __name__ == "__main__":
    main()
