"""`Setting`: what an experiment holds fixed from its first round to its last, made from its settings or handed in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut import Cost, Plan, cost
from nestling.cut.extract import cuts
from nestling.data import Dataset, Partition, Text, TextShares
from nestling.data.array_clients import ArrayClients
from nestling.data.federated import FederatedData
from nestling.data.text.text_clients import TextClients
from nestling.errors import ConfigError
from nestling.experiment.frozen import frozen_names, frozen_slice
from nestling.experiment.model import check_output, traced_model
from nestling.experiment.rows import thawed, token_axes
from nestling.experiment.shares import dealt, opened
from nestling.experiment.texts import held_out
from nestling.fleet import Fleet, Level, Population, level_for, online, parse_mix, population
from nestling.kernels.batch_norms import batch_norms
from nestling.methods import Method, Turn, make
from nestling.methods.parts.static_norms import STATISTICS
from nestling.seeds import derive, torch_stream
from nestling.settings import Experiment
from nestling.tasks import Classification, LanguageTask, Task

_OUTPUT = "output of the model"  # why `trace` freezes the axis of the classes


@dataclass(frozen=True, eq=False)
class Overrides:
    """What a setting is built from: settings, and whatever the caller brings along instead of what they name."""

    experiment: Experiment
    model: nn.Module | None = None
    dataset: Dataset | Text | None = None
    partition: Partition | None = None
    method: Method | None = None

    def __post_init__(self) -> None:
        kinds = {"model": (nn.Module,), "dataset": (Dataset, Text), "partition": (Partition,), "method": (Method,)}
        for name in self.handed():
            given, accepted = getattr(self, name), kinds[name]
            if not isinstance(given, accepted):
                wanted = "an nn.Module" if name == "model" else " or ".join(f"a {kind.__name__}" for kind in accepted)
                raise ConfigError(f"the {name} must be {wanted}, not a {type(given).__name__}")

    def handed(self) -> tuple[str, ...]:
        """Return the kinds of objects that the caller brings along."""
        return tuple(kind for kind in ("model", "dataset", "partition", "method") if getattr(self, kind) is not None)


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that stays the same from round to round.

    Attributes
    ----------
    experiment
        The settings.
    method
        Who gets which slice.
    model, axes
        The global model with its initial weights, and its axes.
    dataset, partition
        The data, and which client holds what of it.
    validation
        The samples kept back from training, (samples,): possibly none.
    unlabelled
        The samples kept back for the server to use without their labels, (samples, …): possibly none.
    fleet
        Who takes part, at which level.
    started
        What was taken of a file of pre-trained weights, for people; empty where there is none.
    """

    experiment: Experiment
    method: Method
    model: nn.Module
    axes: AxisMap
    dataset: Dataset | Text
    partition: Partition
    validation: Tensor
    unlabelled: Tensor
    fleet: Fleet
    started: str = ""

    @cached_property
    def levels(self) -> dict[str, float]:
        """The levels whose sub-models are tested, widest first: name → ratio."""
        if not self.method.sized or not self.experiment.evaluate.submodels:
            return {"full": 1.0}
        levels = sorted((level for level, _ in self.fleet.mix), key=lambda level: -level.ratio)
        return {level.name: level.ratio for level in levels}

    @cached_property
    def task(self) -> Task:
        """What is learnt and how it is measured."""
        text = self.dataset
        if not isinstance(text, Text):
            return Classification()
        known, positions = text.vocabulary, self.experiment.data.positions
        return LanguageTask(
            text.task, text.mask, text.padding, known.unknown, known.end, positions=positions, classes=text.classes
        )

    @cached_property
    def data(self) -> FederatedData:
        """The samples of clients, and those that models are tested on."""
        if isinstance(self.dataset, Dataset):
            return ArrayClients(self.dataset, self.partition, self.validation, self.experiment.evaluate.samples)
        assert isinstance(self.partition, TextShares)
        return TextClients(self.partition, partial(held_out, self.experiment, self.dataset))

    @cached_property
    def classes(self) -> str | None:
        """The axis along which the model gives its classes, where it has one."""
        for axis in self.axes.table.values():
            if axis.frozen == _OUTPUT and axis.size == self.dataset.classes:
                return axis.name
        return None

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The axes along which the model looks up the words that it reads: not those of images."""
        if not isinstance(self.dataset, Text):
            return ()
        random = torch_stream(0, "tokens")
        ids = torch.randint(self.dataset.classes, self.example().shape, generator=random)
        return token_axes(self.model, self.axes, ids)

    def rows(self, client: int) -> dict[str, Tensor]:
        """The rows of classes, and of words, that a client holds, by axis; those of special words are everyone's.

        >>> from nestling.experiment.presets import find
        >>> made = setting(Overrides(find("heterofl-digits")))
        >>> made.rows(3)  # it holds digits of every class
        {}
        """
        labels = self.partition.labels[client]
        axes = {name: self.axes.table[name].size for name in (self.classes, *self.tokens) if name is not None}
        if len(labels) == self.dataset.classes:
            return {}
        special = {size: torch.arange(self.dataset.classes, size) for size in axes.values()}
        return {name: torch.cat([labels, special[size]]) for name, size in axes.items()}

    @cached_property
    def cut_axes(self) -> AxisMap:
        """The axes by which slices are cut: the model's and, where clients select them, rows of classes and words."""
        if not self.experiment.select:
            return self.axes
        return thawed(self.axes, [name for name in (self.classes, *self.tokens) if name is not None])

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of what is trained; the rest of the state are statistics and counters."""
        return frozenset(name for name, _ in self.model.named_parameters(remove_duplicate=False))

    @cached_property
    def user_frozen(self) -> frozenset[str]:
        """The names that the user froze: not trained, not merged, not sent in rounds, whatever the method says."""
        return frozen_names(self.model)

    @cached_property
    def private(self) -> frozenset[str]:
        """The names that clients keep to themselves."""
        return self.method.private(self.axes) - self.user_frozen

    @cached_property
    def inconsistent(self) -> frozenset[str]:
        """The names that every sub-model has for itself."""
        return self.method.inconsistent(self.axes) - self.user_frozen

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of parameters that are not trained."""
        return self.method.frozen(self.axes)

    @cached_property
    def notes(self) -> dict[str, Tensor]:
        """What the server remembers for the method before the first round."""
        seed = derive(self.experiment.seed, "notes")
        return self.method.notes(Turn(self.axes, self.parameters, 1.0, 0, -1, seed))

    @cached_property
    def devices(self) -> Population | None:
        """The devices of the clients, where the experiment has any."""
        fleet = self.experiment.fleet
        return population(fleet.clients, fleet.devices, self.experiment.seed) if fleet.devices else None

    def example(self, batch: int = 2) -> Tensor:
        """An input of the model that holds nothing."""
        return self.dataset.example(batch)

    def cost(self, made: Plan) -> Cost:
        """What the sub-model of a plan costs at the batch of local training."""
        rows = [name for name in made.runs if name in self.axes.frozen]
        if rows:
            return self._cost_of_rows(made, rows)
        sizes = tuple((name, sum(b - a for a, b in runs)) for name, runs in made.runs.items()), made.blocks
        if sizes not in self._costs:
            batch = self.experiment.local.batch
            self._costs[sizes] = cost(self.model, self.axes, made, self.example(1), batch=batch)
        return self._costs[sizes]

    @cached_property
    def _costs(self) -> dict[object, Cost]:
        return {}

    def _cost_of_rows(self, made: Plan, rows: Sequence[str]) -> Cost:
        """What a sub-model with fewer rows costs.

        All of it grows evenly with the number of classes or words, which differs from client to client: so it is
        measured once with a single one (and special words), and the rest follows from the whole.
        """
        sizes = {name: self.axes.table[name].size for name in rows}
        classes = self.dataset.classes
        others = {name: made.index(name) for name in made.runs if name not in rows}
        key = Plan(others, made.blocks), tuple(rows)
        if key not in self._costs:
            one = {name: torch.arange(1 + size - classes) for name, size in sizes.items()}
            single = Plan(others | one, made.blocks)
            batch = self.experiment.local.batch
            self._costs[key] = cost(self.model, self.cut_axes, single, self.example(1), batch=batch)
        more, most = len(made.index(rows[0])) - (sizes[rows[0]] - classes) - 1, classes - 1
        pairs = zip(astuple(self._costs[key]), astuple(self.cost(key[0])), strict=True)
        return Cost(*(low + (high - low) * more // most for low, high in pairs))

    def kept_bytes(self, made: Plan) -> int:
        """Bytes of a sub-model that never travel: what clients keep to themselves, and statistics of static norms."""
        how = cuts(self.cut_axes, made)
        return sum(math.prod(how[name].shape) * size for name, size in self._kept.items() if name in how)

    @cached_property
    def _kept(self) -> dict[str, int]:
        """Bytes of a value of every tensor that never travels."""
        stay = (self.private | self.statistics | self.user_frozen) - self.axes.tied.keys()
        return {name: tensor.itemsize for name, tensor in self.model.state_dict().items() if name in stay}

    @cached_property
    def statistics(self) -> frozenset[str]:
        """The names of statistics that are not gathered in training but asked for before tests."""
        if not self.method.static:
            return frozenset()
        return frozenset(f"{name}.{what}" for name, _ in batch_norms(self.model) for what in STATISTICS)

    def setup(self, plan: Plan) -> tuple[str, int]:
        """A key of the frozen tensors that a client must have for a plan, and their bytes: 0 where none are frozen."""
        if plan not in self._setups:
            self._setups[plan] = frozen_slice(self.cut_axes, plan, self._frozen_sizes)
        return self._setups[plan]

    @cached_property
    def _setups(self) -> dict[Plan, tuple[str, int]]:
        return {}

    @cached_property
    def _frozen_sizes(self) -> dict[str, int]:
        return {name: tensor.itemsize for name, tensor in self.model.state_dict().items() if name in self.user_frozen}

    def holds_samples(self, client: int) -> bool:
        """Whether a client has anything to train on: with data.minimum=0 some have not."""
        return self.experiment.data.minimum > 0 or len(self.partition.train[client]) > 0

    def level(self, client: int, round: int) -> Level:
        """The level of a client in a round: what its device can carry, or as the fleet assigns it."""
        if self.devices is None:
            return self.fleet.level(client, round)
        costs = {level: self.cost(self.submodel(level.ratio)) for level, _ in self.fleet.mix}
        return level_for(self.devices.device_of(client), costs)

    def weight(self, client: int, ratio: float) -> float:
        """How much a client counts where slices are merged."""
        how = self.experiment.server.weighting
        how = self.method.weighting if how == "method" else how
        return {"none": 1.0, "samples": float(len(self.partition.train[client])), "width": ratio}[how]

    def turn(self, client: int, ratio: float, round: int, notes: Mapping[str, Tensor] | None = None) -> Turn:
        """A client's turn in a round: what its slice may depend on."""
        seed = derive(self.experiment.seed, "plan", round, client)
        return Turn(self.axes, self.parameters, ratio, round, client, seed, self.notes if notes is None else notes)

    def plan(self, client: int, ratio: float, round: int, notes: Mapping[str, Tensor] | None = None) -> Plan:
        """What a client gets in a round: what the method gives it, and of classes and words only its own, if so set."""
        made = self.method.plan(self.turn(client, ratio, round, notes))
        rows = self.rows(client) if self.experiment.select else {}
        return Plan({**{name: made.index(name) for name in made.runs}, **rows}, made.blocks, made.key) if rows else made

    def submodel(self, ratio: float, notes: Mapping[str, Tensor] | None = None) -> Plan:
        """The sub-model of a level that is tested and handed out; without notes, as it is before the first round."""
        return self.method.deploy(self.turn(-1, ratio, 0, notes))

    def whole(self, notes: Mapping[str, Tensor] | None = None) -> Plan:
        """The global model: everything, or that part of it that all clients train alike (FedPruned)."""
        return Plan(key="full") if self.method.sized else self.submodel(1.0, notes)

    def sample(self, round: int) -> tuple[int, ...]:
        """Who takes part in a round: drawn by the fleet, and online."""
        drawn = self.fleet.sample(round)
        if self.devices is None:
            return drawn
        seed = self.experiment.seed
        return tuple(client for client in drawn if online(self.devices.device_of(client), client, round, seed))


def setting(overrides: Overrides) -> Setting:
    """Build the setting of an experiment, and find before any work what cannot be."""
    experiment = overrides.experiment
    method = overrides.method or make(experiment.method, experiment.options)
    dataset = opened(experiment, overrides.dataset)
    shares, validation, unlabelled = dealt(experiment, dataset, overrides.partition)
    if len(shares.train) != experiment.fleet.clients:
        raise ConfigError(
            f"the partition has {len(shares.train)} clients, but fleet.clients is {experiment.fleet.clients}"
        )
    model, axes, started = traced_model(experiment, dataset, overrides.model)
    check_output(model, dataset, method)
    mix = parse_mix(experiment.fleet.levels)
    fleet = Fleet(experiment.fleet.clients, experiment.fleet.per_round, mix, experiment.fleet.assign, experiment.seed)
    made = Setting(experiment, method, model, axes, dataset, shares, validation, unlabelled, fleet, started)
    if method.unlabelled and not len(unlabelled):
        raise ConfigError(f"{method.name} needs samples without labels at the server: set data.unlabelled=0.1, say")
    for ratio in made.levels.values():
        made.submodel(ratio).fit(axes)
    if experiment.select and (not method.masked or made.private or made.classes is None):
        raise ConfigError(
            f"select needs a method with a masked loss and nothing private, and a model that gives {dataset.classes} "
            f"classes or words: {method.name} with {experiment.model.name} is not that"
        )
    if made.parameters <= made.user_frozen:
        raise ConfigError("every parameter of the model is frozen (requires_grad=False): there is nothing to train")
    if made.private | made.user_frozen >= frozenset(axes.dims) and experiment.server.optimizer != "average":
        raise ConfigError(f"{method.name} shares nothing, so there is nothing for server.optimizer to do")
    how = experiment.server
    if method.alike and (how.optimizer != "average" or how.weighting not in ("method", "none")):
        raise ConfigError(
            f"{method.name} needs the plain mean of its clients: server.optimizer=average and server.weighting=none, "
            f"not {how.optimizer} and {how.weighting}"
        )
    return made
