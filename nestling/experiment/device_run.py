"""Runs whose clients are real devices: the same rounds, run directory and checkpoints as in simulation.

A run may go from simulation to devices and back after any round, unless its clients keep something: that is where they
are, and does not move; or is differentially private, where ε depends on how clients are drawn.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from nestling.client.worker import Worker
from nestling.data.batches import local_samples
from nestling.data.federated import ClientData, FederatedData
from nestling.errors import ConfigError, RunError, RunFailed
from nestling.events import report
from nestling.experiment.callback import Callback
from nestling.experiment.changes import changed_settings
from nestling.experiment.directory import CONFIG, DEVICES
from nestling.experiment.private_devices import check_private, on_devices
from nestling.experiment.record import format_value
from nestling.experiment.runner import Result, resume, run
from nestling.experiment.simulation import Simulation
from nestling.experiment.simulator import Simulator
from nestling.files import write_whole
from nestling.flower.buffered_clients import BufferedFlowerClients
from nestling.flower.flower_clients import FlowerClients, TooFewReplies
from nestling.flower.link import Link
from nestling.flower.nodes import Nodes, RoundRules
from nestling.kernels.device import find_device
from nestling.methods import Participant
from nestling.seeds import derive, numpy_stream
from nestling.server.state import ServerState
from nestling.settings import Experiment, from_file

_RUN_LOCALLY = ["workers=1", "engine=local", "checkpoint_every=1"]  # clients are elsewhere; no whole round is lost


def run_on_devices(
    experiment: Experiment,
    link: Link,
    rules: RoundRules | None = None,
    *,
    out: str | Path,
    own_data: bool = True,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Run an experiment on devices, or go on with it if its directory has begun.

    Parameters
    ----------
    experiment
        The settings. Levels are those of `fleet`, lowered to what a device can carry.
    link
        The connection to the devices.
    rules
        How long a round waits, and for how many.
    out
        The run directory.
    own_data
        Whether devices have samples of their own; if not, they hold those that the experiment would simulate.
    callbacks
        Called during the run.
    """
    folder, rules = Path(out), rules or RoundRules()
    experiment = experiment.with_settings(_RUN_LOCALLY)
    if experiment.server.fan_in:
        raise ConfigError(
            f"server.fan_in={experiment.server.fan_in} merges clients where they train, but every device answers by "
            "itself: set server.fan_in=0"
        )

    def make(simulation: Simulation, folder: Path | None, callback: Callback) -> tuple[Simulator, Callable[[], None]]:
        tick = callback.on_client
        return DeviceSimulator(simulation, link, rules, folder, own_data=own_data, tick=tick), _nothing

    if not (folder / CONFIG).is_file():
        return run(experiment, out=folder, callbacks=callbacks, make_simulator=make)
    changed = changed_settings(from_file(folder / CONFIG), experiment)
    settings = [f"{key}={format_value(new)}" for key, (_, new) in changed.items() if new is not None]
    return resume(folder, settings=settings, callbacks=callbacks, make_simulator=make)


class DeviceSimulator(Simulator):
    """Runs the rounds of an experiment on devices.

    Parameters
    ----------
    simulation
        The experiment.
    link, rules
        The connection to the devices, and how to deal with them.
    folder
        The run directory.
    own_data
        Whether devices have samples of their own.
    tick
        Called once for every client that is done.
    """

    def __init__(
        self,
        simulation: Simulation,
        link: Link,
        rules: RoundRules,
        folder: Path | None = None,
        *,
        own_data: bool = True,
        tick: Callable[[], None] | None = None,
    ) -> None:
        simulation = replace(simulation, setup=on_devices(simulation.setup))
        setup, settings = simulation.setup, simulation.settings
        setup.method.check(setup, simulation.public)
        check_private(simulation, rules, folder)
        self._nodes, self._rules, self._fleet = Nodes(link, setup, rules), rules, simulation
        data = ServersData(simulation.data, self._nodes) if own_data else simulation.data
        tester = Worker(setup, data, find_device(settings.device), settings.precision)
        here, fleet = replace(simulation, data=data, devices=None), simulation.fleet
        buffered: BufferedFlowerClients | None = None
        given = setup, self._nodes, tester
        samples, name = len(data.test), _token(folder)
        if setup.server.buffer:
            buffered = BufferedFlowerClients(
                *given, test_samples=samples, run=name, tick=tick, hand_out=self._next, at_once=fleet.per_round
            )
        self._pool = buffered or FlowerClients(
            *given, test_samples=samples, run=name, tick=tick, over_selection=fleet.over_selection
        )
        super().__init__(here, clients=self._pool, arrivals=buffered)

    def participants(self, round: int) -> list[Participant]:
        """Return who takes part in a round: those that the experiment draws, as far as they are online."""
        online = self._nodes.wait(round)
        drawn = [client for client in self._fleet.fleet.sample(round) if client in online]
        missing = min(self._fleet.fleet.started, len(online)) - len(drawn)
        if missing > 0:
            others = [client for client in online if client not in drawn]
            stream = numpy_stream(self._fleet.settings.seed, "replacements", round)
            drawn += stream.choice(others, missing, replace=False).tolist()
        return [who for client in sorted(drawn) if (who := self._participant(client, round)) is not None]

    def evaluate(self, state: ServerState) -> tuple[dict[str, Any], dict[str, float]]:
        """Test the models of a state, those of clients on their devices."""
        if not self._nodes.known():  # all rounds were done before this program began
            self._nodes.wait(state.round + 1)
        return super().evaluate(state)

    def _own_models(self, state: ServerState) -> list[Participant]:
        """Return the clients that may have a model of their own: all that are online, as only they know."""
        clients = self._nodes.online()
        return [who for client in clients if (who := self._participant(client, state.round)) is not None]

    def _next(self, round: int, count: int, busy: set[int]) -> list[Participant]:
        """Return at most `count` clients that are online, not busy, and can begin in a round."""
        online = [client for client in self._nodes.wait(round) if client not in busy]
        order = [client for client in self._fleet.fleet.candidates(round) if client in online]
        order += [client for client in online if client not in order]  # of large fleets, not all are candidates
        able = (who for client in order if (who := self._participant(client, round)) is not None and who.samples)
        return list(islice(able, count))

    def run_round(self, before: ServerState) -> tuple[ServerState, dict[str, Any]]:
        """Run the round after a state; if it gets too few updates, run it again."""
        if before.clients.kept.clients() or before.clients.private.clients():
            raise RunError(
                f"the clients of {self._fleet.setup.method.name} keep something from round to round, which this run "
                "has on the server, from its simulation: go on in simulation, or start a new run on devices"
            )
        for tried in range(1, self._rules.tries + 1):
            try:
                after, line = super().run_round(before)
            except TooFewReplies as problem:
                if tried == self._rules.tries:
                    raise RunFailed(
                        f"round {before.round + 1} failed {tried} times; the last time, {problem}"
                    ) from None
                report("round tried again", f"round {before.round + 1} is thrown away and tried again: {problem}")
            else:
                return after, self._with_ignored(before, after, line)
        raise AssertionError("there is at least one try")

    def _with_ignored(self, before: ServerState, after: ServerState, line: dict[str, Any]) -> dict[str, Any]:
        """Return the line of a round with the costs of clients that it did not wait for."""
        ignored, costs = self._pool.ignored, self._simulation.costs
        if not ignored:
            return line
        costs.add_ignored(after.totals, ignored, before.context(self._simulation.setup))
        count = len(ignored)
        return line | costs.recorded(after.totals) | {"dropped": line["dropped"] - count, "discarded": count}

    def _participant(self, client: int, round: int) -> Participant | None:
        """Return a client at the level that it is given, or the largest that its device can carry, if it can any."""
        simulation, capacity = self._fleet, self._nodes.node(client).capacity
        setup, training = simulation.setup, simulation.setup.training
        levels = [level for level, _ in simulation.fleet.mix]
        widest = max(levels, key=lambda level: level.ratio)
        assigned = simulation.fleet.level(client, round) if simulation.devices is None else widest
        costs = {level: self._simulation.costs.cost(setup.submodel_plan(level.ratio)) for level in levels}
        steps = -(-local_samples(training, capacity.samples) // training.batch_size)
        level = self._nodes.level(client, assigned, costs, max(1, steps))
        if level is None:
            return None
        held = torch.tensor(capacity.held, dtype=torch.long) if setup.select_rows else None
        return Participant(client, level, capacity.samples, derive(setup.seed, "plan", round, client), held)


@dataclass(frozen=True, eq=False)
class ServersData:
    """What a server has of the data: samples to test on, and the sizes that devices say; `FederatedData`."""

    whole: FederatedData
    nodes: Nodes

    @property
    def name(self) -> str:
        """The name of the data in reports."""
        return self.whole.name

    @property
    def classes(self) -> int:
        """The number of classes, or words."""
        return self.whole.classes

    @property
    def model_options(self) -> Mapping[str, Any]:
        """The options of a model that follow from the data."""
        return self.whole.model_options

    def example(self, samples: int) -> Any:
        """Return a model input of zeros."""
        return self.whole.example(samples)

    @property
    def test(self) -> ClientData:
        """The test samples."""
        return self.whole.test

    @property
    def validation(self) -> ClientData:
        """The samples that the best round is chosen by."""
        return self.whole.validation

    def __len__(self) -> int:
        return len(self.whole)

    def client(self, number: int) -> ClientData:
        """Raise an error: samples do not leave devices."""
        raise RunError(f"the samples of client {number} are on its device")

    def size(self, number: int) -> int:
        """Return the number of samples of a client that is, or was, online; else 0."""
        return self.nodes.node(number).capacity.samples if number in self.nodes.known() else 0

    def test_share(self, number: int) -> Tensor:
        """Return no indices: the server does not know which test samples are like a client's."""
        del number
        return torch.empty(0, dtype=torch.long)


def _nothing() -> None:
    """Do nothing: the connection belongs to the caller."""


def _token(folder: Path | None) -> str:
    """Return a text that tells this run from others: the same whenever it goes on."""
    if folder is None:
        return secrets.token_hex(8)
    path = folder / DEVICES
    if not path.exists():
        write_whole(path, (json.dumps({"run": secrets.token_hex(8)}) + "\n").encode())
    try:
        return msgspec.json.decode(path.read_bytes(), type=_DeviceRun).run
    except msgspec.DecodeError:
        raise RunError(f"{path} cannot be read: put back a copy of it, or start a new run") from None


class _DeviceRun(msgspec.Struct):
    run: str
