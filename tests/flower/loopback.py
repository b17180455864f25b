"""Nodes in this process: real packets of real bytes, answered by real `NodeWorker`s, without a network between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from nestling.client.worker import Worker
from nestling.experiment import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.flower.link import Answer, Packet, Request
from nestling.flower.node_memory import DictMemory
from nestling.flower.node_worker import NodeConfig, NodeWorker

SETTINGS = ["group_clients=off", "local.epochs=1", "rounds=2", "fleet.levels=a-c", "fleet.clients=10"]
SETTINGS += [
    "fleet.per_round=10",
    "model.width=0.25",
    "data.max_samples=300",
    "evaluate.samples=50",
    "evaluate.every=2",
]


class Silent(Exception):
    """The node never answers."""


Fault = Callable[[Request, Packet], Packet]


class Loopback:
    """A `Link` to nodes of this process.

    Parameters
    ----------
    experiment
        What the nodes run.
    nodes
        How many there are; node 100 + k is client k.
    faults
        Client → what happens to its answers to jobs: a function of the request and the true answer.
    configs
        Client → its configuration.
    """

    def __init__(self, experiment, nodes, faults=None, configs=None):
        simulation = simulate(Overrides(experiment))
        setup, data = simulation.setup, simulation.data
        self._worker = NodeWorker(setup, data, Worker(setup, data))
        self.online = [100 + client for client in range(nodes)]
        self.memories = {node: DictMemory() for node in self.online}
        self.faults, self.faulty = dict(faults or {}), {"train"}  # and the kinds of messages with faults
        self.requests: dict[str, Request] = {}
        self.twice: list[Answer] = []
        self._configs, self._ids = configs or {}, itertools.count()

    def nodes(self) -> Sequence[int]:
        return list(self.online)

    def push(self, request: Request) -> str | None:
        if request.node not in self.online:
            return None
        name = f"request-{next(self._ids)}"
        self.requests[name] = request
        return name

    def pull(self, requests: Sequence[str]) -> list[Answer]:
        answers = [*self.twice]
        self.twice = []
        for name in requests:
            if name in self.requests:
                try:
                    answers.append(Answer(name, self._answer(self.requests[name])))
                except Silent:
                    continue
                except Exception as problem:
                    answers.append(Answer(name, error=f"{type(problem).__name__}: {problem}"))
                del self.requests[name]
        return answers

    def _answer(self, request: Request) -> Packet:
        client = request.node - 100
        config = self._configs.get(client, NodeConfig(client))
        memory = self.memories[request.node]
        packet = self._worker.answer(request.kind, request.packet, config, lambda run: memory)
        fault = self.faults.get(client)
        return packet if fault is None or request.kind not in self.faulty else fault(request, packet)


def experiment(*settings: str, preset: str = "heterofl-digits"):
    return find(preset).with_settings([*SETTINGS, *settings])
