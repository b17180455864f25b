"""`Part` and `PlanPart`: what methods are made of. A part overrides the hooks that it needs; all others do nothing.

A method is a chain of parts, in the spirit of optax. Each part is a frozen dataclass at the top level of a module, so
that a method can be sent to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from nestling.cut import Plan, plan
from nestling.cut.extract import Same
from nestling.data.federated import ClientData
from nestling.methods.context import AfterMerge, ClientContext, Merged, Owner, Participant, RoundContext, Setup, State
from nestling.tasks.task import Batch, LossResult, OutputMask

Inner = Callable[[Batch], LossResult]


class Part:
    """One aspect of a method. Hooks are listed in the order in which an experiment calls them.

    Attributes
    ----------
    proximal
        FedProx's μ that the part adds to every client's loss.
    per_ratio
        Whether `build` makes other models for other ratios, even of one shape.
    extendable
        Whether `after_merge` ignores how many rounds there will be, so that a run may be extended.
    """

    @property
    def proximal(self) -> float:
        """FedProx's μ that the part adds to every client's loss."""
        return 0.0

    @property
    def per_ratio(self) -> bool:
        """Whether `build` makes other models for other ratios, even of one shape."""
        return False

    @property
    def extendable(self) -> bool:
        """Whether `after_merge` ignores how many rounds there will be, so that a run may be extended."""
        return False

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise a `MethodError` or `ConfigError` in one sentence where the part cannot work with this experiment."""

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Return what the server keeps for the part before the first round."""
        del setup, seed
        return {}

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Return the tensors that are not everybody's: state name → who has its own."""
        del setup
        return {}

    def initial(self, setup: Setup, plan: Plan) -> Mapping[str, float]:
        """Return where a sub-model's own tensors start at other values than the global model's: name → value."""
        del setup, plan
        return {}

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Change a sub-model of a level before it is trained or tested for the first time, in place."""

    def output_mask(self, setup: Setup, held: Tensor) -> OutputMask | None:
        """Return the classes that the loss of a client is about, from those that it holds; None for all."""
        del setup, held
        return None

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return the loss of a client on a batch; `inner` is the loss of the parts before, and of the task."""
        del client
        return inner(batch)

    def finish(self, client: ClientContext) -> dict[str, Tensor]:
        """Return what a client keeps for its next round: ``kind/tensor`` → value, shaped like that tensor."""
        del client
        return {}

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Return the model to go on with; nothing that is handed in may be changed."""
        return AfterMerge(merged.model, dict(round.method_state))

    def predict(self, output: Any) -> Tensor:
        """Return the logits, (samples, classes), in what the model returns."""
        logits: Tensor = output
        return logits

    def global_model(self, setup: Setup, method_state: State) -> State | None:
        """Return the global model that is tested and saved; None where it is the merged model."""
        del setup, method_state
        return None


class PlanPart(Part):
    """The part of a method that says which slice a client trains."""

    @property
    def by_level(self) -> bool:
        """Whether clients of different levels get different slices.

        If not, the global model is the sub-model of ratio 1, and no other is tested.
        """
        return True

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the slice that a client trains in a round: by default the sub-model of its level."""
        return self.submodel_plan(round.setup, round.method_state, who.level.ratio)

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the sub-model of a level, for tests and devices: by default the first units of every axis."""
        del method_state
        return prefix_plan(Same(setup.axes), ratio)


@lru_cache(maxsize=64)
def prefix_plan(axes: Same, ratio: float) -> Plan:
    """Return one plan for all clients of a level: making it takes as long as a step of a small model."""
    return plan(axes.axes, ratio)
