"""The arguments of hooks: `Setup` (the whole experiment), `RoundContext` (a round) and `ClientContext` (a client).

`Setup` holds what the server and the devices share. It holds no data: a real device has only its own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data.federated import ClientData
from nestling.fleet import Level, Participation
from nestling.methods.frozen import frozen_names
from nestling.methods.rows import output_axis, thawed, token_axes
from nestling.model_inputs import Inputs
from nestling.seeds import derive, torch_stream
from nestling.settings import LocalTraining, ServerSettings, Upload
from nestling.tasks.task import OutputMask, Task

if TYPE_CHECKING:
    from nestling.methods.method import Method

Owner = Literal["client", "submodel", "statistics"]


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that stays the same from round to round, for the server and for every device.

    Attributes
    ----------
    model, axes
        The global model with its initial weights, and its axes.
    example
        Two inputs of the model with arbitrary values, (2, …).
    task
        What is learned and how it is measured.
    method
        The method of federated learning.
    training, server, upload
        The settings of local training, of the server's step, and of uploads.
    select_rows
        Whether clients receive and return only the rows of the classes, or words, that they hold.
    accelerate
        Whether our faster kernels and memory formats may be used.
    ratios
        The ratios of all levels of the fleet, increasing.
    clients, rounds, seed
        The number of clients and of rounds in all, and the seed of the experiment.
    participation
        How clients come to take part in a round; None where nothing about it is known.
    secret
        What the noise of privacy is drawn from beside the seed, which devices know; empty in simulation.
    """

    model: nn.Module
    axes: AxisMap
    example: Inputs
    task: Task
    method: Method
    training: LocalTraining = field(default_factory=LocalTraining)
    server: ServerSettings = field(default_factory=ServerSettings)
    upload: Upload = field(default_factory=Upload)
    select_rows: bool = False
    accelerate: bool = True
    ratios: tuple[float, ...] = (1.0,)
    clients: int = 1
    rounds: int = 1
    seed: int = 0
    participation: Participation | None = None
    secret: str = field(default="", repr=False)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of all parameters; the rest of the state are statistics and counters."""
        return frozenset(name for name, _ in self.model.named_parameters(remove_duplicate=False))

    @cached_property
    def user_frozen(self) -> frozenset[str]:
        """The names of tensors that the user froze: never trained, merged or sent in rounds, whatever the method."""
        return frozen_names(self.model)

    @cached_property
    def output_axis(self) -> str | None:
        """The axis of the classes in the model's output; None if it has none."""
        return output_axis(self.axes, self.task.classes)

    @cached_property
    def token_axes(self) -> tuple[str, ...]:
        """The axes of embeddings that look up input words; empty where inputs are not the words that are predicted."""
        if not self.task.reads_classes or not isinstance(self.example, Tensor) or self.example.is_floating_point():
            return ()
        random = torch_stream(0, "tokens")
        ids = torch.randint(self.task.classes, self.example.shape, generator=random)
        return token_axes(self.model, self.axes, ids)

    @cached_property
    def row_axes(self) -> tuple[str, ...]:
        """The axes whose rows each belong to one class or word."""
        return tuple(name for name in (self.output_axis, *self.token_axes) if name is not None)

    @cached_property
    def cut_axes(self) -> AxisMap:
        """The axes by which slices are cut: the model's and, if clients select rows, those of classes and words."""
        return thawed(self.axes, self.row_axes) if self.select_rows else self.axes

    def rows(self, held: Tensor) -> dict[str, Tensor]:
        """Return the rows of the classes that a client holds, by axis; all clients hold those of special words.

        The result is empty if the client holds all classes: it then has all rows.
        """
        classes = self.task.classes
        if len(held) == classes:
            return {}
        sizes = {name: self.axes.table[name].size for name in self.row_axes}
        return {name: torch.cat([held, torch.arange(classes, size)]) for name, size in sizes.items()}

    @cached_property
    def owners(self) -> dict[str, Owner]:
        """The tensors that are not shared by all clients: state name → owner."""
        owners = self.method.owners(self)
        return {name: owner for name, owner in owners.items() if name not in self.user_frozen}

    @cached_property
    def private(self) -> frozenset[str]:
        """The names of tensors that every client keeps to itself."""
        return frozenset(name for name, owner in self.owners.items() if owner == "client")

    def without_private(self, state: dict[str, Tensor], plan: Plan, download: Callable[[Plan], State]) -> State:
        """Return a state to merge: what the client keeps to itself is as it was sent (`download`): no change."""
        if not self.private:
            return state
        sent = download(plan)
        return state | {name: sent[name] for name in self.private & sent.keys()}

    @cached_property
    def per_submodel(self) -> frozenset[str]:
        """The names of tensors that every sub-model has for itself."""
        return frozenset(name for name, owner in self.owners.items() if owner == "submodel")

    @cached_property
    def norm_statistics(self) -> frozenset[str]:
        """The names of statistics that training does not use: clients measure them before tests."""
        return self.method.norm_statistics(self)

    @cached_property
    def stay(self) -> frozenset[str]:
        """The names of tensors that do not travel in rounds."""
        return self.private | self.norm_statistics | self.user_frozen

    @cached_property
    def clients_keep(self) -> bool:
        """Whether clients keep anything from round to round."""
        return bool(self.private) or self.upload.feedback or bool(self.method.overriding("finish"))

    @cached_property
    def initial_method_state(self) -> State:
        """The server state of the method before the first round."""
        return self.method.init(self, derive(self.seed, "notes"))

    def submodel_plan(self, ratio: float, method_state: State | None = None) -> Plan:
        """Return the sub-model of a level that is tested and exported; without a state, that before the first round."""
        state = self.initial_method_state if method_state is None else method_state
        return self.method.plan.submodel_plan(self, state, ratio)

    def global_plan(self, method_state: State | None = None) -> Plan:
        """Return the plan of the global model: everything, or the one slice that all clients train (FedPruned)."""
        return Plan(key="full") if self.method.plan.by_level else self.submodel_plan(1.0, method_state)

    def weight(self, who: Participant) -> float:
        """Return the weight of a client in the merge."""
        weighting = self.server.weighting
        weighting = self.method.weighting if weighting == "method" else weighting
        return {"none": 1.0, "samples": float(who.samples), "width": who.level.ratio}[weighting]

    @property
    def proximal(self) -> float:
        """FedProx's μ: the sum of the method's and of the settings'."""
        return self.method.proximal + self.training.proximal


@dataclass(frozen=True)
class Participant:
    """A client that takes part in a round.

    Attributes
    ----------
    client
        Its number.
    level
        The level of its device in this round.
    samples
        The number of its samples.
    seed
        A seed for this client and round, the same whenever the experiment is repeated.
    held
        The classes that it holds, if clients select rows; else None.
    """

    client: int
    level: Level
    samples: int = 0
    seed: int = 0
    held: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round, as the server sees it.

    Attributes
    ----------
    setup
        The experiment.
    number, lr
        The number of the round, counted from 1, and its learning rate.
    before
        The global model before the round.
    method_state
        The server state of the method.
    public
        Samples without labels that the server may use; None if there are none.
    seed
        A seed for this round, the same whenever the experiment is repeated.
    """

    setup: Setup
    number: int
    lr: float
    before: State
    method_state: State
    public: ClientData | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Merged:
    """The global model after the server's step.

    Attributes
    ----------
    model
        Name → tensor.
    gathered
        Returns, by name, the total weight of the clients that held each coordinate of a tensor, in its shape.
    received
        What `Part.received` returned for the last update; None if there was none.
    rule
        What merged the updates: that of the part with `Part.aggregator`, which may keep what it has learned.
    """

    model: dict[str, Tensor]
    gathered: Callable[[str], Tensor]
    received: Any = None
    rule: Any = None


@dataclass(frozen=True, eq=False)
class AfterMerge:
    """The result of a method's `after_merge`.

    Attributes
    ----------
    model, method_state
        The global model and the server state of the method for the next round.
    networks
        Other networks of this round, tested too if the round is evaluated: name → plan, weights.
    figures
        Figures of this round for metrics.jsonl: name → value.
    """

    model: dict[str, Tensor]
    method_state: dict[str, Tensor]
    networks: Mapping[str, tuple[Plan, State]] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PublicWork:
    """What a client does in a round with public samples, beside the training of its slice.

    Attributes
    ----------
    trained
        Samples of training steps, if the server sent something (`Part.send`).
    predicted
        Samples of forward passes.
    bytes_up
        Bytes that it replies (`Part.reply`).
    """

    trained: int = 0
    predicted: int = 0
    bytes_up: int = 0


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client in training.

    Attributes
    ----------
    setup
        The experiment.
    model
        The client's sub-model, in training mode.
    plan, ratio
        The slice that it trains, and the ratio of its level.
    round, lr
        The number of the round, counted from 1, and its learning rate.
    sent
        The slice that it received, on the CPU.
    client_state
        What the client kept from earlier rounds: ``kind/tensor`` → value.
    extra
        What the server sent beside the slice (`Part.send`): name → tensor.
    public
        The samples without labels that clients have, too, if the method needs that (`Part.public_work`); else None.
    mask
        The mask of the classes in its loss; None for all classes.
    draw
        The client's random generator of this round, for losses that draw.
    workspace
        A cache that lives as long as the model, for all batches and clients that use it.
    """

    setup: Setup
    model: nn.Module
    plan: Plan
    ratio: float = 1.0
    round: int = 1
    lr: float = 0.1
    sent: State = field(default_factory=dict)
    client_state: State = field(default_factory=dict)
    extra: State = field(default_factory=dict)
    public: ClientData | None = None
    mask: OutputMask | None = None
    draw: np.random.Generator = field(default_factory=np.random.default_rng)
    workspace: dict[Any, Any] = field(default_factory=dict)
