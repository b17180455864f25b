"""`Method`: a name, a plan and a chain of parts.

``dataclasses.replace(heterofl(), name="mine", plan=MyPlan())`` and ``heterofl().with_parts(Proximal(0.01))`` make new
methods from old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.kernels.batch_norms import batch_norms
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
from nestling.methods.part import Inner, Part, PlanPart
from nestling.tasks.task import Batch, LossResult, OutputMask

Weighting = Literal["none", "samples", "width"]
_PRECEDENCE: tuple[Owner, ...] = ("statistics", "submodel", "client")  # a later owner takes precedence


@dataclass(frozen=True, init=False)
class Method:
    """A method of federated learning.

    Attributes
    ----------
    name
        The name in tables and on the command line.
    plan
        The part that chooses the slice of a client.
    parts
        All other parts, in the order in which their hooks run; ``None`` is dropped.
    weighting
        The weight of a client in the merge: the same for all, its number of samples, or its ratio.

    Examples
    --------
    >>> from nestling.methods.parts.proximal import Proximal
    >>> Method("mine", PlanPart(), Proximal(0.1), weighting="samples").proximal
    0.1
    """

    name: str
    plan: PlanPart
    parts: tuple[Part, ...]
    weighting: Weighting

    def __init__(
        self,
        name: str,
        plan: PlanPart,
        *more: Part | None,
        parts: Sequence[Part | None] = (),
        weighting: Weighting = "none",
    ) -> None:
        all_parts = tuple(part for part in (*parts, *more) if part is not None)
        for part in (plan, *all_parts):
            if not isinstance(part, Part):
                raise MethodError(f"the method {name} is made of Parts, and {part!r} is not one")
        if not isinstance(plan, PlanPart):
            raise MethodError(f"the plan of the method {name} must be a PlanPart, not a {type(plan).__name__}")
        for field, value in {"name": name, "plan": plan, "parts": all_parts, "weighting": weighting}.items():
            object.__setattr__(self, field, value)
        for hook in ("output_mask", "predict", "global_model", "public_work", "aggregator"):
            names = [part.label for part in self.overriding(hook)]
            if len(names) > 1:
                raise MethodError(f"the method {name} can have one part with `{hook}`, not {' and '.join(names)}")

    @property
    def chain(self) -> tuple[Part, ...]:
        """The plan and all other parts."""
        return (self.plan, *self.parts)

    def with_parts(self, *more: Part) -> Method:
        """Return this method with more parts at the end of its chain."""
        return replace(self, parts=(*self.parts, *more))

    def overriding(self, hook: str) -> list[Part]:
        """Return the parts that override a hook.

        >>> from nestling.methods.heterofl import heterofl
        >>> heterofl().overriding("output_mask")
        [MaskedLoss()]
        """
        return [part for part in self.chain if getattr(type(part), hook) is not getattr(Part, hook)]

    @property
    def proximal(self) -> float:
        """FedProx's μ, summed over all parts."""
        return sum(part.proximal for part in self.overriding("proximal"))

    @property
    def per_ratio(self) -> bool:
        """Whether models of one shape differ between ratios."""
        return any(part.per_ratio for part in self.overriding("per_ratio"))

    @property
    def extendable(self) -> bool:
        """Whether nothing that the server does depends on the total number of rounds."""
        return all(part.extendable for hook in ("after_merge", "aggregator") for part in self.overriding(hook))

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the method cannot work with an experiment."""
        for part in self.chain:
            part.check(setup, public)
        covered = setup.owners.keys() | setup.norm_statistics | setup.user_frozen
        for name, _ in batch_norms(setup.model):
            statistics = f"{name}.running_mean".removeprefix(".")
            if statistics in setup.axes.dims and statistics not in covered:
                raise MethodError(
                    f"the model has the batch norm {name!r}, and {self.name} neither keeps it static nor per "
                    "sub-model: add StaticNorms() to its parts"
                )

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Return the initial server state of all parts."""
        state: dict[str, Tensor] = {}
        for part in self.chain:
            for name, value in part.init(setup, seed).items():
                if name in state:
                    raise MethodError(f"two parts of {self.name} keep a tensor called {name!r} at the server")
                state[name] = value
        return state

    def owners(self, setup: Setup) -> dict[str, Owner]:
        """Return the tensors that clients or sub-models own: state name → owner.

        If several parts claim a tensor, clients take precedence over sub-models, and these over statistics. Tensors
        that are only statistics are left out: see `norm_statistics`.
        """
        claims = [claim for part in self.chain for claim in part.owners(setup).items()]
        claims.sort(key=lambda claim: _PRECEDENCE.index(claim[1]))
        return {name: owner for name, owner in dict(claims).items() if owner != "statistics"}

    def norm_statistics(self, setup: Setup) -> frozenset[str]:
        """Return the names of all tensors that some part claims as statistics, whoever owns them."""
        claims = [claim for part in self.chain for claim in part.owners(setup).items()]
        return frozenset(name for name, owner in claims if owner == "statistics")

    def initial(self, setup: Setup, plan: Plan) -> dict[str, float]:
        """Return the initial values of a sub-model's own tensors that differ from the global model's: name → value."""
        return {name: value for part in self.chain for name, value in part.initial(setup, plan).items()}

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Change a sub-model before it is trained or tested, in place."""
        for part in self.overriding("build"):
            part.build(model, setup, ratio)

    def client_plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the slice that a client trains; where clients select rows, with its own rows only."""
        plan = self.plan.plan(round, who)
        rows = {} if who.held is None else round.setup.rows(who.held)
        return Plan({**{name: plan.index(name) for name in plan.runs}, **rows}, plan.blocks, plan.key) if rows else plan

    def public_work(self, setup: Setup, public: Sized | None) -> PublicWork:
        """Return what a client does in a round with public samples, beside the training of its slice."""
        parts = self.overriding("public_work")
        return parts[0].public_work(setup, 0 if public is None else len(public)) if parts else PublicWork()

    def send(self, round: RoundContext, who: Participant) -> dict[str, Tensor]:
        """Return what the server sends to a client beside its slice: name → tensor."""
        return {name: value for part in self.overriding("send") for name, value in part.send(round, who).items()}

    def start(self, client: ClientContext) -> None:
        """Change a client's model before it trains on its own samples."""
        for part in self.overriding("start"):
            part.start(client)

    def output_mask(self, setup: Setup, held: Tensor) -> OutputMask | None:
        """Return the mask of the classes in a client's loss; None for all classes."""
        parts = self.overriding("output_mask")
        return parts[0].output_mask(setup, held) if parts else None

    def loss(self, client: ClientContext) -> Callable[[Batch], LossResult]:
        """Return the loss of a client: that of the task, wrapped by those of the parts; later parts are outer."""
        inner: Inner = partial(client.setup.task.loss, client.model, mask=client.mask)
        for part in self.overriding("loss"):
            inner = partial(part.loss, client, inner=inner)
        return inner

    def finish(self, client: ClientContext) -> dict[str, Tensor]:
        """Return what a client keeps for its next round."""
        return {name: value for part in self.overriding("finish") for name, value in part.finish(client).items()}

    def reply(self, client: ClientContext) -> dict[str, Tensor]:
        """Return what a client sends to the server beside its slice: name → tensor."""
        return {name: value for part in self.overriding("reply") for name, value in part.reply(client).items()}

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return what merges the updates of a round: that of a part, or their weighted mean."""
        parts = self.overriding("aggregator")
        return parts[0].aggregator(round, mean) if parts else mean

    def upload_bytes(self, setup: Setup, plan: Plan) -> int | None:
        """Return the expected bytes of a client's upload if it is not its slice; None if it is."""
        parts = self.overriding("upload_bytes")
        return parts[0].upload_bytes(setup, plan) if parts else None

    def received(self, round: RoundContext, update: Update, earlier: Sequence[Any] = ()) -> list[Any]:
        """Return what each part remembers of the updates of a round, from that of `earlier` ones and another update."""
        before = earlier or [None] * len(self.chain)
        return [part.received(round, update, memory) for part, memory in zip(self.chain, before, strict=True)]

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Run the parts' hooks after a merge: each part gets the model and the state that the previous one returned.

        ``merged.received`` is what `received` returned for the last update.
        """
        result = AfterMerge(merged.model, dict(round.method_state))
        for part, received in zip(self.chain, merged.received or [None] * len(self.chain), strict=True):
            networks, figures = result.networks, result.figures
            round = replace(round, method_state=result.method_state)
            result = part.after_merge(round, Merged(result.model, merged.gathered, received, merged.rule))
            result = replace(result, networks={**networks, **result.networks}, figures={**figures, **result.figures})
        return result

    def predict(self, output: Any) -> Tensor:
        """Return the logits, (samples, classes), from the output of a model."""
        parts = self.overriding("predict")
        return parts[0].predict(output) if parts else output

    def global_model(self, setup: Setup, method_state: State) -> State | None:
        """Return the global model that is tested and saved; None for the merged model."""
        parts = self.overriding("global_model")
        return parts[0].global_model(setup, method_state) if parts else None
