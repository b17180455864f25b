"""`Simulation`: an experiment with all its clients on one machine, built from settings or from objects handed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from nestling.data import Dataset, Partition, Text
from nestling.data.federated import ClientData, FederatedData
from nestling.data.own.own_clients import OwnArrays
from nestling.errors import ConfigError
from nestling.experiment.federated_data import DividedData, Source, divided_data
from nestling.experiment.model import check_output, traced_model
from nestling.experiment.simulated_fleet import simulated_fleet
from nestling.fleet import Fleet, Level, Participation, Population, level_for, online
from nestling.methods import Method, Participant, Setup, make
from nestling.methods.stale_updates import check_stale_updates
from nestling.seeds import derive
from nestling.server.cost_meter import CostMeter
from nestling.settings import Experiment
from nestling.tasks import Task

KINDS = ("model", "dataset", "partition", "method", "task")  # of objects that callers hand in


@dataclass(frozen=True, eq=False)
class Overrides:
    """Settings, and objects that the caller hands in instead of those that the settings name.

    Attributes
    ----------
    experiment
        The settings.
    model
        The global model, with its initial weights.
    dataset
        A `Dataset`, a `Text` or `OwnArrays`, which are divided among clients, or a `FederatedData`, which is divided.
    partition
        Which client holds which samples of the data.
    method
        The method, with its options.
    task
        What is learned: loss and metrics.
    levels_text
        The content of the file that fleet.levels names, as the run began with it; None to read the file.
    """

    experiment: Experiment
    model: nn.Module | None = None
    dataset: Source | None = None
    partition: Partition | None = None
    method: Method | None = None
    task: Task | None = None
    levels_text: str | None = None

    def __post_init__(self) -> None:
        accepted: dict[str, tuple[tuple[type, ...], tuple[str, ...], str]] = {  # types, or attributes; both in words
            "model": ((nn.Module,), (), "an nn.Module"),
            "dataset": ((Dataset, Text, OwnArrays), ("test", "client"), "a Dataset, a Text or a FederatedData"),
            "partition": ((Partition,), (), "a Partition"),
            "method": ((Method,), (), "a Method"),
            "task": ((), ("metrics", "loss", "measure"), "a Task"),
        }
        for kind in self.handed():
            types, attributes, words = accepted[kind]
            value = getattr(self, kind)
            has_attributes = attributes and all(hasattr(value, name) for name in attributes)
            if not isinstance(value, types) and not has_attributes:
                raise ConfigError(f"the {kind} must be {words}, not a {type(value).__name__}")

    def handed(self) -> tuple[str, ...]:
        """Return the kinds of objects that the caller handed in."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


@dataclass(frozen=True, eq=False)
class Simulation:
    """An experiment with the data of all clients and a simulated fleet.

    Attributes
    ----------
    settings
        The settings.
    setup
        What the server and all clients share.
    dataset
        The data, before it was divided among clients.
    partition
        Which client holds which samples; None if the data is divided itself.
    data
        The samples of all clients, and those that models are tested on.
    public
        The samples that the server may use without their labels; None for none.
    fleet
        Who takes part, at which level.
    devices
        The devices of the clients, if the experiment has any.
    started
        A sentence about the pre-trained weights that were loaded; empty if there are none.
    levels_text
        The content of the file that fleet.levels names; empty if it names none.
    """

    settings: Experiment
    setup: Setup
    dataset: Source
    partition: Partition | None
    data: FederatedData
    public: ClientData | None
    fleet: Fleet
    devices: Population | None
    started: str = ""
    levels_text: str = ""

    @cached_property
    def costs(self) -> CostMeter:
        """What plans cost, and how long rounds take on the devices."""
        fleet = self.settings.fleet
        return CostMeter(self.setup, self.devices, fleet.deadline, fleet.over_selection)

    @property
    def public_at_clients(self) -> ClientData | None:
        """The samples without labels that clients have, too; None if the method does not need that."""
        return self.public if self.setup.method.overriding("public_work") else None

    @cached_property
    def levels(self) -> dict[str, float]:
        """The levels whose sub-models are tested, widest first: name → ratio."""
        if not self.setup.method.plan.by_level or not self.settings.evaluate.submodels:
            return {"full": 1.0}
        levels = sorted((level for level, _ in self.fleet.mix), key=lambda level: -level.ratio)
        return {level.name: level.ratio for level in levels}

    def participants(self, round: int) -> list[Participant]:
        """Return who takes part in a round: drawn by the fleet, and online."""
        drawn = (client for client in self.fleet.sample(round) if self._online(client, round))
        return [self.participant(client, round) for client in drawn]

    def candidates(self, round: int) -> Iterator[int]:
        """Yield clients in random order that are online in a round and have samples."""
        return (who for who in self.fleet.candidates(round) if self._online(who, round) and self.data.size(who))

    def _online(self, client: int, round: int) -> bool:
        devices = self.devices
        return devices is None or online(devices.device_of(client), client, round, self.settings.seed)

    def participant(self, client: int, round: int) -> Participant:
        """Return a client as it takes part in a round."""
        seed = derive(self.settings.seed, "plan", round, client)
        held = self.data.client(client).held() if self.setup.select_rows else None
        return Participant(client, self._level(client, round), self.data.size(client), seed, held)

    def _level(self, client: int, round: int) -> Level:
        """Return the level of a client: the one that its device can carry, or else the one that the fleet assigns."""
        if self.devices is None:
            return self.fleet.level(client, round)
        costs = {level: self.costs.cost(self.setup.submodel_plan(level.ratio)) for level, _ in self.fleet.mix}
        return level_for(self.devices.device_of(client), costs)


def simulate(overrides: Overrides) -> Simulation:
    """Build the simulation of an experiment; raise before any training if something does not fit."""
    settings = overrides.experiment
    divided = divided_data(settings, overrides.dataset, overrides.partition, overrides.task)
    data, clients = divided.data, settings.fleet.clients
    if len(data) != clients:
        source = data.name if divided.partition is None else "the partition"
        raise ConfigError(
            f"{source} has {len(data)} clients, but fleet.clients is {clients}: set fleet.clients={len(data)}"
        )
    simulation = build(overrides, divided)
    setup = simulation.setup
    check_output(setup.model, data, setup.task, setup.method)
    _check(simulation)
    return simulation


def build(overrides: Overrides, divided: DividedData) -> Simulation:
    """Build a simulation with data that is divided already; whether all fits together is not checked."""
    settings = overrides.experiment
    method = overrides.method or make(settings.method, settings.options, settings.parts)
    data, task, clients = divided.data, divided.task, settings.fleet.clients
    model, axes, started = traced_model(settings, data, task, overrides.model)
    setup = Setup(
        model=model,
        axes=axes,
        example=data.example(2),
        task=task,
        method=method,
        training=settings.local,
        server=settings.server,
        upload=settings.upload,
        select_rows=settings.select_rows,
        accelerate=settings.accelerate != "off",
        clients=clients,
        rounds=settings.rounds,
        seed=settings.seed,
    )
    fleet, devices, levels_text = simulated_fleet(settings, setup, overrides.levels_text)
    ratios = tuple(sorted(level.ratio for level, _ in fleet.mix))
    setup = replace(setup, ratios=ratios, participation=Participation.of(fleet) if devices is None else None)
    return Simulation(
        settings=settings,
        setup=setup,
        dataset=divided.source,
        partition=divided.partition,
        data=data,
        public=divided.public,
        fleet=fleet,
        devices=devices,
        started=started,
        levels_text=levels_text,
    )


def check_clock(simulation: Simulation) -> None:
    """Raise if an experiment needs to know who arrives first, and nothing says how fast its clients are."""
    settings = simulation.settings
    names = {"server.buffer": settings.server.buffer, "fleet.over_selection": settings.fleet.over_selection - 1}
    needing = [name for name, value in names.items() if value]
    if needing and simulation.devices is None:
        raise ConfigError(
            f"{needing[0]} needs fleet.devices, such as fleet.devices=phone-low:3,laptop:1: without devices, nothing "
            "says whose update arrives first"
        )


def _check(simulation: Simulation) -> None:
    """Raise if the parts of an experiment do not fit together."""
    setup, settings = simulation.setup, simulation.settings
    method, classes = setup.method, setup.task.classes
    if settings.server.buffer:
        check_stale_updates(setup)
    method.check(setup, simulation.public)
    for ratio in simulation.levels.values():
        setup.submodel_plan(ratio).fit(setup.axes)
    if setup.select_rows and (not method.overriding("output_mask") or setup.private or setup.output_axis is None):
        raise ConfigError(
            f"select_rows needs a method with a masked loss and nothing private, and a model that gives {classes} "
            f"classes or words: {method.name} with {settings.model.name} is not that"
        )
    if settings.evaluate.local != "masked" and not setup.task.local_accuracy:
        raise ConfigError(f"evaluate.local={settings.evaluate.local} has no effect: only classes have a local accuracy")
    if settings.evaluate.local == "own-data" and setup.private:
        raise ConfigError(
            f"evaluate.local=own-data tests the server's model, but clients of {method.name} have their own"
        )
    if setup.parameters <= setup.user_frozen:
        raise ConfigError("every parameter of the model is frozen (requires_grad=False): there is nothing to train")
    if settings.server.fan_in and (method.overriding("received") or method.overriding("aggregator")):
        raise ConfigError(
            f"the server of {method.name} needs the update of every client by itself, and "
            f"server.fan_in={settings.server.fan_in} merges some before they reach it: set server.fan_in=0"
        )
    if setup.private | setup.user_frozen >= frozenset(setup.axes.dims) and settings.server.optimizer != "average":
        raise ConfigError(f"{method.name} shares nothing, so there is nothing for server.optimizer to do")
