"""`Simulation`: an experiment with all its clients on one machine, built from settings or from objects handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from nestling.data import Dataset, Partition, Text
from nestling.data.federated import ClientData, FederatedData
from nestling.errors import ConfigError
from nestling.experiment.federated_data import Source, divided_data
from nestling.experiment.model import check_output, traced_model
from nestling.fleet import Fleet, Level, Population, level_for, online, parse_mix, population
from nestling.methods import Method, Participant, Setup, make
from nestling.seeds import derive
from nestling.server.cost_meter import CostMeter
from nestling.settings import Experiment
from nestling.tasks import Task


@dataclass(frozen=True, eq=False)
class Overrides:
    """What a simulation is built from: settings, and objects that the caller hands in instead of those they name."""

    experiment: Experiment
    model: nn.Module | None = None
    dataset: Source | None = None
    partition: Partition | None = None
    method: Method | None = None
    task: Task | None = None

    def __post_init__(self) -> None:
        accepted: dict[str, tuple[tuple[type, ...], str]] = {
            "model": ((nn.Module,), "an nn.Module"),
            "partition": ((Partition,), "a Partition"),
            "method": ((Method,), "a Method"),
        }
        for name, (types, wanted) in accepted.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, types):
                raise ConfigError(f"the {name} must be {wanted}, not a {type(given).__name__}")
        needed = {"dataset": ("test", "client"), "task": ("metrics", "loss", "measure")}
        for name, attributes in needed.items():
            given = getattr(self, name)
            known = name == "dataset" and isinstance(given, Dataset | Text)
            if given is not None and not known and not all(hasattr(given, one) for one in attributes):
                wanted = "a Dataset, a Text or a FederatedData" if name == "dataset" else "a Task"
                raise ConfigError(f"the {name} must be {wanted}, not a {type(given).__name__}")

    def handed(self) -> tuple[str, ...]:
        """Return the kinds of objects that the caller hands in."""
        kinds = ("model", "dataset", "partition", "method", "task")
        return tuple(kind for kind in kinds if getattr(self, kind) is not None)


@dataclass(frozen=True, eq=False)
class Simulation:
    """An experiment with everybody's data and a simulated fleet.

    Attributes
    ----------
    settings
        The settings.
    setup
        What the server and all clients share.
    dataset
        The data, before it was divided among clients.
    partition
        Which client holds which samples; None where the data says so itself.
    data
        The samples of all clients, and those that models are tested on.
    public
        The samples that the server may use without their labels; None for none.
    fleet
        Who takes part, at which level.
    devices
        The devices of the clients, where the experiment has any.
    started
        What was taken of a file of pre-trained weights, for people; empty where there is none.
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

    @cached_property
    def costs(self) -> CostMeter:
        """What plans cost, and how long rounds take on the devices."""
        return CostMeter(self.setup, self.devices, self.settings.fleet.deadline)

    @cached_property
    def levels(self) -> dict[str, float]:
        """The levels whose sub-models are tested, widest first: name → ratio."""
        if not self.setup.method.plan.by_level or not self.settings.evaluate.submodels:
            return {"full": 1.0}
        levels = sorted((level for level, _ in self.fleet.mix), key=lambda level: -level.ratio)
        return {level.name: level.ratio for level in levels}

    def participants(self, round: int) -> list[Participant]:
        """Return who takes part in a round: drawn by the fleet, and online."""
        drawn: Sequence[int] = self.fleet.sample(round)
        if self.devices is not None:
            seed, device_of = self.settings.seed, self.devices.device_of
            drawn = [client for client in drawn if online(device_of(client), client, round, seed)]
        return [self.participant(client, round) for client in drawn]

    def participant(self, client: int, round: int) -> Participant:
        """Return a client as it takes part in a round."""
        seed = derive(self.settings.seed, "plan", round, client)
        held = self.data.client(client).held() if self.setup.select_rows else None
        return Participant(client, self._level(client, round), self.data.size(client), seed, held)

    def _level(self, client: int, round: int) -> Level:
        """Return the level of a client: what its device can carry, or as the fleet assigns it."""
        if self.devices is None:
            return self.fleet.level(client, round)
        costs = {level: self.costs.cost(self.setup.submodel_plan(level.ratio)) for level, _ in self.fleet.mix}
        return level_for(self.devices.device_of(client), costs)


def simulate(overrides: Overrides) -> Simulation:
    """Build the simulation of an experiment; raise before any work where something does not fit."""
    settings = overrides.experiment
    method = overrides.method or make(settings.method, settings.options, settings.parts)
    divided = divided_data(settings, overrides.dataset, overrides.partition)
    data, task, clients = divided.data, overrides.task or divided.task, settings.fleet.clients
    if len(data) != clients:
        raise ConfigError(f"the partition has {len(data)} clients, but fleet.clients is {clients}")
    model, axes, started = traced_model(settings, data, task, overrides.model)
    check_output(model, data, task, method)
    mix = parse_mix(settings.fleet.levels)
    setup = Setup(
        model=model,
        axes=axes,
        example=data.example(2),
        task=task,
        method=method,
        training=settings.local,
        server=settings.server,
        upload=settings.upload,
        select_rows=settings.select,
        accelerate=settings.accelerate != "off",
        ratios=tuple(sorted(level.ratio for level, _ in mix)),
        clients=clients,
        rounds=settings.rounds,
        seed=settings.seed,
    )
    fleet = Fleet(clients, settings.fleet.per_round, mix, settings.fleet.assign, settings.seed)
    devices = population(clients, settings.fleet.devices, settings.seed) if settings.fleet.devices else None
    simulation = Simulation(
        settings, setup, divided.source, divided.partition, data, divided.public, fleet, devices, started
    )
    _check(simulation)
    return simulation


def _check(simulation: Simulation) -> None:
    """Raise where the parts of an experiment do not fit together."""
    setup, settings = simulation.setup, simulation.settings
    method, classes = setup.method, setup.task.classes
    method.check(setup, simulation.public)
    for ratio in simulation.levels.values():
        setup.submodel_plan(ratio).fit(setup.axes)
    if setup.select_rows and (not method.overriding("output_mask") or setup.private or setup.output_axis is None):
        raise ConfigError(
            f"select needs a method with a masked loss and nothing private, and a model that gives {classes} "
            f"classes or words: {method.name} with {settings.model.name} is not that"
        )
    if setup.parameters <= setup.user_frozen:
        raise ConfigError("every parameter of the model is frozen (requires_grad=False): there is nothing to train")
    if setup.private | setup.user_frozen >= frozenset(setup.axes.dims) and settings.server.optimizer != "average":
        raise ConfigError(f"{method.name} shares nothing, so there is nothing for server.optimizer to do")
