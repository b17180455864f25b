"""`Part` and `PlanPart`: the components of methods. A part overrides the hooks that it needs; all others do nothing.

A method is a chain of parts, as in optax. Each part is a frozen dataclass at the top level of a module, so
that a method can be sent to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from nestling.cut import Plan, plan
from nestling.cut.extract import Same, State
from nestling.data.federated import ClientData
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import (
    AfterMerge,
    ClientContext,
    Merged,
    Owner,
    Participant,
    PublicWork,
    RoundContext,
    Setup,
)
from nestling.methods.messages import Update
from nestling.tasks.task import Batch, LossResult, OutputMask

Inner = Callable[[Batch], LossResult]


class Part:
    """One aspect of a method. Hooks are listed in the order in which an experiment calls them."""

    @property
    def label(self) -> str:
        """The name of the part in messages."""
        return type(self).__name__

    @property
    def instead(self) -> str:
        """What to do where the part cannot be combined with another one, for messages."""
        return "use another method"

    @property
    def proximal(self) -> float:
        """FedProx's μ that the part adds to every client's loss."""
        return 0.0

    @property
    def per_ratio(self) -> bool:
        """Whether `build` makes different models for different ratios, even of one shape."""
        return False

    @property
    def extendable(self) -> bool:
        """Whether `after_merge` and `aggregator` ignore the total number of rounds, so that a run may be extended."""
        return False

    @property
    def takes_stale_updates(self) -> bool:
        """Whether what the part does at the server makes sense of updates that began with different models.

        With ``server.buffer``, `aggregator` gets updates as if they had begun with the current model, their changes
        discounted by age.
        """
        return False

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise a `MethodError` or `ConfigError` if the part cannot work with this experiment."""

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Return the initial server state of the part: name → tensor."""
        del setup, seed
        return {}

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Return the tensors that are not shared by all: state name → owner."""
        del setup
        return {}

    def initial(self, setup: Setup, plan: Plan) -> Mapping[str, float]:
        """Return the initial values of a sub-model's own tensors that differ from the global model's: name → value."""
        del setup, plan
        return {}

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Change a new sub-model of a level in place, before it is trained or tested."""

    def public_work(self, setup: Setup, samples: int) -> PublicWork:
        """Return what a client does with the public samples; a part that overrides it gets them at the clients, too.

        Parameters
        ----------
        setup
            The experiment.
        samples
            How many public samples there are.
        """
        del setup, samples
        return PublicWork()

    def send(self, round: RoundContext, who: Participant) -> Mapping[str, Tensor]:
        """Return what the server sends to a client beside its slice: name → tensor."""
        del round, who
        return {}

    def start(self, client: ClientContext) -> None:
        """Change a client's model before it trains on its own samples."""

    def output_mask(self, setup: Setup, held: Tensor) -> OutputMask | None:
        """Return the mask of the classes in a client's loss, from those that it holds; None for all classes."""
        del setup, held
        return None

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return the loss of a client on a batch; `inner` is the loss of the task and of earlier parts."""
        del client
        return inner(batch)

    def finish(self, client: ClientContext) -> dict[str, Tensor]:
        """Return what a client keeps for its next round: ``kind/tensor`` → value, shaped like that tensor."""
        del client
        return {}

    def reply(self, client: ClientContext) -> Mapping[str, Tensor]:
        """Return what a client sends to the server beside its slice, after training: name → tensor."""
        del client
        return {}

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return what merges the updates of a round; by default, and without such a part, their weighted `mean`.

        The server asks for a new one in every round. It gets every client's update by itself, in the order of the jobs,
        with its plan and its weight, and may use the mean (which it is given empty) or not. At most one part of a
        method overrides this. A rule that keeps the updates until the round ends says so: memory then grows with the
        clients of a round, by the size of their slices.
        """
        del round
        return mean

    def upload_bytes(self, setup: Setup, plan: Plan) -> int | None:
        """Return the expected bytes of a client's upload if it is not its slice; None if it is.

        What was really sent is counted by the part's aggregator (`nestling.methods.aggregator.Metered`).
        """
        del setup, plan
        return None

    def received(self, round: RoundContext, update: Update, earlier: Any) -> Any:
        """Return what the server remembers of the updates of a round, from that of `earlier` ones and another update.

        `earlier` is None for the first; `after_merge` gets the last as ``merged.received``. A part that overrides this
        gets every client's update by itself: they are not averaged before.
        """
        del round, update
        return earlier

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Return the model and the server state for the next round; the arguments must not be changed."""
        return AfterMerge(merged.model, dict(round.method_state))

    def predict(self, output: Any) -> Tensor:
        """Return the logits, (samples, classes), from the output of a model."""
        logits: Tensor = output
        return logits

    def global_model(self, setup: Setup, method_state: State) -> State | None:
        """Return the global model that is tested and saved; None for the merged model."""
        del setup, method_state
        return None


class PlanPart(Part):
    """The part of a method that chooses the slice that a client trains."""

    @property
    def by_level(self) -> bool:
        """Whether clients of different levels get different slices; if not, only the sub-model of ratio 1 is tested."""
        return True

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the slice that a client trains in a round: by default the sub-model of its level."""
        return self.submodel_plan(round.setup, round.method_state, who.level.ratio)

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the sub-model of a level, for tests and devices: by default the first units of every axis."""
        del method_state
        return prefix_plan(Same(setup.axes), ratio)

    def submodel_source(self, setup: Setup, ratio: float) -> str:
        """Return what the sub-model of a level was made from, for summary.json; empty if there is only one way."""
        del setup, ratio
        return ""


@lru_cache(maxsize=64)
def prefix_plan(axes: Same, ratio: float) -> Plan:
    """Return the plan of a level, cached: making it takes as long as a training step of a small model."""
    return plan(axes.axes, ratio)
