"""The ServerApp of `bench.devices`: rounds of echoing devices, of which it writes what they took."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from bench.apart import most_memory
from bench.exchange_client import reply_to
from nestling.client.worker import Worker
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.flower.array_codec import packed
from nestling.flower.flower_api import ArrayRecord, Context, Grid, GridLink, Message, ServerApp, content_of
from nestling.flower.flower_clients import FlowerClients
from nestling.flower.link import Packet
from nestling.flower.node_messages import Capacity, Training, raw, write
from nestling.flower.nodes import Node, Nodes, RoundRules
from nestling.heap import keep_freed_memory
from nestling.server.aggregate import Merge
from nestling.server.round import run_round
from nestling.server.state import ServerState
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

LEVELS = "a-b-c-d-e"
PER_ROUND = 5  # messages, so that what a round does once weighs as it does in small fleets
SMALL = {"widths": [16, 24, 32], "norm": "none"}  # a CNN of some 40 kB
_RULES = RoundRules(poll=0.05, window=2, wait=300.0, deadline=3000.0)


class FewNodes(Nodes):
    """Any number of clients on the few nodes that are there, which nobody asks who they are."""

    def node(self, client: int) -> Node:
        """Return the node of a client."""
        ids = sorted(self.link.nodes())
        return Node(ids[client % len(ids)], client, Capacity(model="", samples=10))


def simulation_of(model: str, clients: int, levels: str = "a") -> Simulation:
    """Return an experiment whose clients have these levels."""
    options: dict[str, Any] = SMALL if model == "cnn" else {}
    fleet = FleetSettings(clients=clients, per_round=clients, levels=levels)
    local, evaluate = LocalTraining(epochs=1, batch_size=10), Evaluate(every=10**6)
    settings = Experiment(
        model=Model(name=model, options=options), data=Data(name="digits"), fleet=fleet, local=local, evaluate=evaluate
    )
    return simulate(Overrides(settings))


def whole_plan() -> str:
    """Return the digest of the plan of level a, which echoing devices put into their replies."""
    simulation = simulation_of("cnn", 1)
    return simulation.setup.submodel_plan(1.0).digest


def bytes_by_level() -> dict[str, tuple[int, int, int]]:
    """Return for every level of resnet18 the bytes of the slice, of the message with it, and of the reply."""
    simulation = simulation_of("resnet18", 5, LEVELS)
    setup, state = simulation.setup, ServerState.start(simulation.setup)
    sizes = {}
    for level, ratio in simulation.levels.items():
        plan = setup.submodel_plan(ratio)
        own = {name: tensor for name, tensor in state.download(setup, plan).items() if name not in setup.stay}
        own = {name: torch.randn_like(tensor) if tensor.is_floating_point() else tensor for name, tensor in own.items()}
        header = Training(
            ticket="0" * 16,
            run="0" * 16,
            round=100,
            lr=0.1,
            client=100,
            level=level,
            samples=1000,
            seed=2**62,
            plan=raw(plan),
        )
        message = content_of(Packet(write(header), packed(own)))
        values = sum(tensor.numel() * tensor.itemsize for tensor in own.values())
        sizes[level] = values, _size(message), _size(content_of(Packet(_REPLY, packed(own))))
    return sizes


_REPLY = '{"message":"Trained","format":"nestling-devices-1","version":"0.0.0","ticket":"0000000000000000",' + (
    '"plan":"0123456789abcdef","samples":1000,"loss":1.2345678901234567,"correct":1000.0,"rows":"","kept":0}'
)


def _size(part: Any) -> int:
    """Return the bytes of everything that Flower sends of a message's content."""
    return len(part.deflate()) + sum(_size(child) for child in (part.children or {}).values())


def memory(grid: Grid, counts: Sequence[int], done: Callable[[dict[str, Any]], None]) -> None:
    """Tell the most memory after every tenth reply, in rounds of some numbers of clients with resnet18."""
    simulation = simulation_of("resnet18", max(counts))
    setup, merged, who = simulation.setup, [0], list[Any]()
    start = time.perf_counter()

    def tick() -> None:
        merged[0] += 1
        if merged[0] == len(who) or merged[0] % 10 == 0:
            done({"merged": merged[0], "peak": most_memory(), "seconds": time.perf_counter() - start})

    clients, before, merge = _clients(simulation, grid, tick), ServerState.start(setup), _merge(simulation)
    for count in counts:
        merged[0], start = 0, time.perf_counter()
        who[:] = [simulation.participant(client, 1) for client in range(count)]
        _, line = run_round(setup, before, who, clients=clients, merge=merge, costs=simulation.costs)
        if line["clients"] != count:
            raise RuntimeError(f"{line['clients']} of {count} replies were merged")


class Echo(Grid):  # type: ignore[misc]
    """Nodes in this program, which reply to a message with the arrays in it.

    What travels is serialised, hashed and read as Flower does it, but goes through no network and no database.
    """

    def __init__(self, plan: str) -> None:
        self._plan, self._sent, self._count = plan, dict[str, Message](), 0

    def set_run(self, run: Any) -> None:
        """Do nothing."""

    @property
    def run(self) -> Any:
        """Return nothing."""

    def create_message(self, *_given: Any, **_more: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def get_node_ids(self) -> Sequence[int]:
        """Return as many nodes as messages of a round."""
        return range(1, PER_ROUND + 1)

    def push_messages(self, messages: Iterable[Message]) -> Sequence[str]:
        """Take messages; return their ids."""
        names = []
        for message in messages:
            self._count += 1
            names.append(f"m{self._count}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self._sent[names[-1]] = message
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Sequence[Message]:
        """Answer messages; return the replies."""
        return [self._reply(self._sent.pop(name)) for name in message_ids]

    def _reply(self, message: Message) -> Message:
        return Message(_travelled(reply_to(_travelled(message.content), self._plan)), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Sequence[Message]:
        """Answer messages; return their replies."""
        del timeout
        return self.pull_messages(self.push_messages(messages))


def _travelled(content: RecordDict) -> RecordDict:
    objects = get_all_nested_objects(content)
    contents = {name: part.deflate() for name, part in objects.items()}
    return inflate_object_from_contents(content.object_id, contents)


def echoed_memory(counts: Sequence[int]) -> list[dict[str, float]]:
    """Return what `memory` tells, of nodes in this program."""
    _alone()
    lines: list[dict[str, float]] = []
    memory(Echo(whole_plan()), counts, lines.append)
    return lines


def _alone() -> None:
    """Prepare this program to send messages that no SuperLink asked for."""
    keep_freed_memory()  # as a ServerApp of ours does
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # every message says where it comes from


def overhead(model: str, turns: int) -> list[dict[str, float]]:
    """Return the processor seconds per message of rounds of five: ours and those of Flower's FedAvg, in turns."""
    _alone()
    simulation = simulation_of(model, PER_ROUND)
    setup = simulation.setup
    before, merge = ServerState.start(setup), _merge(simulation)
    who = [simulation.participant(client, 1) for client in range(PER_ROUND)]
    grid = Echo(setup.submodel_plan(1.0).digest)
    clients = _clients(simulation, grid)
    arrays = ArrayRecord({name: tensor for name, tensor in before.model.items() if name not in setup.stay})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=PER_ROUND, min_available_nodes=PER_ROUND)

    def ours() -> None:
        _, line = run_round(setup, before, who, clients=clients, merge=merge, costs=simulation.costs)
        if line["clients"] != PER_ROUND:
            raise RuntimeError(f"{line['clients']} of {PER_ROUND} replies were merged")

    def fedavg() -> None:
        if not strategy.start(grid, arrays, num_rounds=1).train_metrics_clientapp:
            raise RuntimeError("the reply was not merged")

    laps = []
    for turn in range(turns + 1):
        seconds = {}
        for name, action in (("ours", ours), ("FedAvg", fedavg)):
            start = time.process_time()
            action()
            seconds[name] = (time.process_time() - start) / PER_ROUND
        if turn:  # the first does not count
            laps.append(seconds)
    return laps


def _merge(simulation: Simulation) -> Merge:
    return Merge(simulation.setup, ServerState.start(simulation.setup))


def _clients(simulation: Simulation, grid: Grid, tick: Callable[[], None] | None = None) -> FlowerClients:
    setup, link = simulation.setup, GridLink(grid)
    while not link.nodes():
        time.sleep(0.1)
    tester = Worker(setup, simulation.data)
    return FlowerClients(setup, FewNodes(link, setup, _RULES), tester, test_samples=0, run="bench", tick=tick)


app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]  # Flower is not installed where types are checked
def main(grid: Grid, context: Context) -> None:
    """Measure memory, into the file that the run's configuration names."""
    config = context.run_config
    keep_freed_memory()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)

    def done(figures: dict[str, Any]) -> None:
        with Path(str(config["out"])).open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")

    memory(grid, [int(count) for count in str(config["counts"]).split()], done)
