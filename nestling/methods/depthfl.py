"""DepthFL: the smaller the device, the fewer of the first stages it trains; their classifiers learn from each other.

Kim, Yu, Kim, Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023.

Variants
--------
- ``full``: a classifier after every stage. A client trains the first stages and their classifiers (`StagePrefixPlan`).
  The loss is the sum of the classifiers' cross-entropies and of their divergences from each other (`Exits.loss`). A
  sub-model predicts the mean of its classifiers' probabilities (`Exits.predict`). The stages must be nested modules, as
  those of ``resnet18-exits`` are.
- ``plain``: NeFL's reduced version (Kang et al., 2023, B.3), for any residual net: one classifier, no distillation, the
  first consecutive blocks. A dropped block keeps its shortcut, so that shapes fit the classifier. Norms are shared.
- ``nefl``: ``plain``, but every sub-model has norms for itself, with running statistics, as NeFL's B.3 describes it.

NeFL contradicts itself about the DepthFL of its tables: by B.3 its norms are decoupled, by §5 it has no inconsistent
parameters, and the authors' code shares them. So a row of its tables is ``plain`` by the experiments, ``nefl`` by the
appendix. Of ResNet18 there are four sub-models in either, as the prefix nearest to γ = 0.8 is the whole model.

Departures
----------
- A level is a share of the parameters, as in NeFL's comparison: a client gets the number of stages (or blocks) whose
  share is nearest to it, and at least the first.
- No gradient flows into the teacher of a divergence: every classifier learns from the others' predictions, and none
  changes in order to be easier to learn from.
- Norms of ``full`` and ``plain`` are static (`nestling.methods.parts.static_norms`): running statistics of different
  depths would contradict each other. NeFL does not say what becomes of them where norms are shared.
- FedDyn's regulariser (`nestling.methods.feddyn`), which the authors use, is an option and off by default: NeFL
  compares DepthFL without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import State, dropped_names
from nestling.data.federated import ClientData
from nestling.errors import MethodError, nearest
from nestling.kernels.cross_entropy import correct
from nestling.methods.context import ClientContext, Setup
from nestling.methods.feddyn import with_feddyn
from nestling.methods.method import Method
from nestling.methods.part import Inner, Part, PlanPart
from nestling.methods.parts.per_submodel import NORMS, PerSubmodel
from nestling.methods.parts.static_norms import StaticNorms
from nestling.model_inputs import forward
from nestling.tasks.class_loss import count_targets, masked
from nestling.tasks.task import Batch, LossResult

Variant = Literal["full", "plain", "nefl"]
_NEEDS = "depthfl needs a model with a classifier after every stage, such as 'resnet18-exits'"


@dataclass(frozen=True)
class StagePrefixPlan(PlanPart):
    """The first stages, with their classifiers, whose share of the parameters is nearest to the level."""

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the first stages."""
        del method_state
        if not _has_exits(setup.axes):
            raise MethodError(f"{_NEEDS}: for other residual nets there is variant='plain'")
        # the first stage is always there, so it is not among the blocks
        return _prefix(setup, ratio, [(block,) for block in setup.axes.blocks], at_least=0)


@dataclass(frozen=True)
class BlockPrefixPlan(PlanPart):
    """The first residual blocks whose share of the parameters is nearest to the level."""

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the first blocks."""
        del method_state
        if not setup.axes.blocks:
            raise MethodError("depthfl leaves out whole blocks, and this model has none: use a residual net")
        if _has_exits(setup.axes):
            raise MethodError(
                "depthfl with variant='plain' or 'nefl' is for models with one classifier: use variant='full'"
            )
        return _prefix(setup, ratio, _groups(setup.axes.blocks), at_least=1)


@dataclass(frozen=True)
class Exits(Part):
    """A loss over the classifiers of all stages, and predictions by their ensemble.

    Attributes
    ----------
    distill
        Whether the classifiers learn from each other.
    ramp
        The first round in which distillation has its full weight; 0 for full weight from the start.
    """

    distill: bool = True
    ramp: int = 300

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error for tasks with another loss: that of several classifiers is the sum of cross-entropies."""
        del public
        if setup.task.class_dim != -1 or not setup.task.classes:
            raise MethodError(f"depthfl's classifiers need one class for every sample, which {setup.task.name} has not")

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return Σ_i CE_i + ramp_up · Σ_{i≠j} KL(p_j ‖ p_i) / (n − 1) of n classifiers, each a mean over the batch."""
        del inner
        inputs, targets = batch
        held = None if client.mask is None else client.mask.held
        outputs = [masked(logits, held) for logits in exits(forward(client.model, inputs))]
        loss = torch.stack([F.cross_entropy(logits, targets) for logits in outputs]).sum()
        if self.distill and len(outputs) > 1:
            logs = [logits.log_softmax(-1) for logits in outputs]
            divergences = [
                F.kl_div(student, teacher.detach(), reduction="batchmean", log_target=True)
                for student in logs
                for teacher in logs
                if student is not teacher
            ]
            loss = loss + ramp_up(client.round, self.ramp) / (len(outputs) - 1) * torch.stack(divergences).sum()
        hits = correct(ensemble(outputs).detach(), targets).sum()
        return LossResult(loss, count_targets(targets), hits)

    def predict(self, output: Any) -> Tensor:
        """Return the logarithm of the mean of the classifiers' probabilities."""
        return ensemble(exits(output))


def ramp_up(round: int, ramp: int) -> float:
    """Return the weight of distillation in a round: small at first, when the classifiers know little.

    >>> ramp_up(300, 300), round(ramp_up(150, 300), 4)
    (1.0, 0.2865)
    """
    return math.exp(-5 * (1 - round / ramp) ** 2) if round < ramp else 1.0


def exits(output: object) -> list[Tensor]:
    """Return the logits of a sub-model's classifiers; the model's output repeats the last one for dropped stages."""
    if not isinstance(output, tuple | list):
        raise MethodError(f"{_NEEDS}, that returns a tuple of logits, and not a {type(output).__name__}")
    return list(dict.fromkeys(output))  # tensors are compared by identity here, not by value


def ensemble(outputs: Iterable[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the classifiers' probabilities, (samples, classes).

    >>> sure, unsure = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> ensemble([sure, unsure]).exp()
    tensor([[0.7000, 0.3000]])
    """
    logs = torch.stack([logits.log_softmax(-1) for logits in outputs])
    return logs.logsumexp(0) - math.log(len(logs))


def depthfl(variant: Variant = "full", distill: bool = True, ramp: int = 300, feddyn: float = 0.0) -> Method:
    """Return DepthFL.

    Parameters
    ----------
    variant
        ``"full"`` for models with a classifier after every stage, ``"plain"`` for any residual net, ``"nefl"`` for the
        same with norms of its own in every sub-model.
    distill
        Whether the classifiers learn from each other; ``plain`` and ``nefl`` have only one.
    ramp
        The first round in which distillation has its full weight; 0 for full weight from the start.
    feddyn
        α of FedDyn's regulariser; 0 for none. It needs shared parameters, so it does not go with ``nefl``.

    Examples
    --------
    >>> depthfl("plain").name
    'depthfl'
    """
    if variant not in get_args(Variant):
        raise MethodError(f"there is no variant {variant!r} of depthfl{nearest(str(variant), get_args(Variant))}")
    if ramp < 0:
        raise MethodError(f"depthfl's ramp must be a number of rounds of at least 0, not {ramp!r}")
    if variant == "full":
        method = Method("depthfl", StagePrefixPlan(), StaticNorms(), Exits(distill, ramp))
    else:
        method = Method("depthfl", BlockPrefixPlan(), StaticNorms() if variant == "plain" else PerSubmodel((NORMS,)))
    return with_feddyn(method, feddyn) if feddyn else method


def _has_exits(axes: AxisMap) -> bool:
    """Return whether the model returns several tensors, and its blocks are nested."""
    blocks = list(axes.blocks)
    nested = all(inner.startswith(f"{outer}.") for outer, inner in pairwise(blocks))
    outputs = sum(axis.role == "output" for axis in axes.table.values())
    return bool(blocks) and nested and outputs > 1


def _groups(blocks: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the blocks in groups: those with the same index in a module list, such as attention and MLP, together."""
    groups: dict[str, list[str]] = {}
    for block in blocks:
        words = block.split(".")
        while words and not words[-1].isdigit():
            words.pop()
        groups.setdefault(".".join(words) or block, []).append(block)
    return [tuple(group) for group in groups.values()]


def _prefix(setup: Setup, ratio: float, groups: list[tuple[str, ...]], at_least: int) -> Plan:
    """Return the plan that keeps the first groups of blocks: the number of them whose size is nearest to the level."""
    axes = setup.axes
    sizes = {name: math.prod(axes.dims[name].shape) for name in setup.parameters if name not in axes.tied}
    whole = sum(sizes.values())

    def kept(count: int) -> list[str]:
        return [block for group in groups[:count] for block in group]

    def distance(count: int) -> float:
        held = whole - sum(sizes.get(name, 0) for name in dropped_names(axes, kept(count)))
        return abs(held - ratio * whole)

    count = min(range(at_least, len(groups) + 1), key=distance)  # the smaller of two equally near ones
    if ratio == 1 or count == len(groups):
        return Plan(key="full")
    return Plan(blocks=kept(count), key=f"depth{count}")
