"""`Method`: a name, a plan and a chain of parts.

``dataclasses.replace(heterofl(), name="mine", plan=MyPlan())`` and ``heterofl().with_parts(Proximal(0.01))`` make new
methods from old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from nestling.cut import Plan
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.kernels.batch_norms import batch_norms
from nestling.methods.context import AfterMerge, ClientContext, Merged, Owner, Participant, RoundContext, Setup, State
from nestling.methods.part import Inner, Part, PlanPart
from nestling.tasks.task import Batch, LossResult, OutputMask

Weighting = Literal["none", "samples", "width"]
_PRECEDENCE: tuple[Owner, ...] = ("statistics", "submodel", "client")  # the last one that claims a tensor has it


@dataclass(frozen=True, init=False)
class Method:
    """A method of federated learning.

    Attributes
    ----------
    name
        As in tables and on the command line.
    plan
        Which slice a client trains.
    parts
        What else is special about the method, in the order in which hooks run; ``None`` among them is dropped.
    weighting
        How much a client counts in the merge: all the same, by its samples, or by its ratio.

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
        every = tuple(part for part in (*parts, *more) if part is not None)
        for part in (plan, *every):
            if not isinstance(part, Part):
                raise MethodError(f"the method {name} is made of Parts, and {part!r} is none")
        if not isinstance(plan, PlanPart):
            raise MethodError(f"the plan of the method {name} must be a PlanPart, not a {type(plan).__name__}")
        for field, value in {"name": name, "plan": plan, "parts": every, "weighting": weighting}.items():
            object.__setattr__(self, field, value)
        for hook in ("output_mask", "predict", "global_model"):
            several = [type(part).__name__ for part in self.overriding(hook)]
            if len(several) > 1:
                raise MethodError(f"the method {name} can have one part with `{hook}`, not {' and '.join(several)}")

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
        """Whether models of one shape differ from ratio to ratio."""
        return any(part.per_ratio for part in self.overriding("per_ratio"))

    @property
    def extendable(self) -> bool:
        """Whether nothing that the server does depends on how many rounds there will be."""
        return all(part.extendable for part in self.overriding("after_merge"))

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise in one sentence where the method cannot work with an experiment."""
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
        """Return what the server keeps for all parts before the first round."""
        state: dict[str, Tensor] = {}
        for part in self.chain:
            for name, value in part.init(setup, seed).items():
                if name in state:
                    raise MethodError(f"two parts of {self.name} keep a tensor called {name!r} at the server")
                state[name] = value
        return state

    def owners(self, setup: Setup) -> dict[str, Owner]:
        """Return who has its own of which tensor: a client's claim wins over a sub-model's, and that over statistics.

        Statistics that no client and no sub-model has for itself belong to nobody: see `norm_statistics`.
        """
        claims = [claim for part in self.chain for claim in part.owners(setup).items()]
        claims.sort(key=lambda claim: _PRECEDENCE.index(claim[1]))
        return {name: owner for name, owner in dict(claims).items() if owner != "statistics"}

    def norm_statistics(self, setup: Setup) -> frozenset[str]:
        """Return every tensor that some part claims as statistics, whoever has its own of it."""
        claims = [claim for part in self.chain for claim in part.owners(setup).items()]
        return frozenset(name for name, owner in claims if owner == "statistics")

    def initial(self, setup: Setup, plan: Plan) -> dict[str, float]:
        """Return where a sub-model's own tensors start at other values than the global model's: name → value."""
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

    def output_mask(self, setup: Setup, held: Tensor) -> OutputMask | None:
        """Return the classes that the loss of a client is about; None for all."""
        parts = self.overriding("output_mask")
        return parts[0].output_mask(setup, held) if parts else None

    def loss(self, client: ClientContext) -> Callable[[Batch], LossResult]:
        """Return the loss of a client: that of the task, inside those of the parts; later parts are outer."""
        inner: Inner = partial(client.setup.task.loss, client.model, mask=client.mask)
        for part in self.overriding("loss"):
            inner = partial(part.loss, client, inner=inner)
        return inner

    def finish(self, client: ClientContext) -> dict[str, Tensor]:
        """Return what a client keeps for its next round."""
        return {name: value for part in self.overriding("finish") for name, value in part.finish(client).items()}

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Run what the server does after a merge: each part sees the model and the state of the one before."""
        result = AfterMerge(merged.model, dict(round.method_state))
        for part in self.overriding("after_merge"):
            networks = result.networks
            round = replace(round, method_state=result.method_state)
            result = part.after_merge(round, Merged(result.model, merged.gathered))
            result = replace(result, networks={**networks, **result.networks})
        return result

    def predict(self, output: Any) -> Tensor:
        """Return the logits, (samples, classes), in what the model returns."""
        parts = self.overriding("predict")
        return parts[0].predict(output) if parts else output

    def global_model(self, setup: Setup, method_state: State) -> State | None:
        """Return the global model that is tested and saved; None where it is the merged model."""
        parts = self.overriding("global_model")
        return parts[0].global_model(setup, method_state) if parts else None
