"""DepthFL: the smaller the device, the fewer of the first stages it trains, with classifiers that teach each other.

Kim, Yu, Kim, Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023.

Variants
--------
- ``full``: a classifier after every stage. A client trains the first stages and their classifiers, by the sum of their
  cross-entropies and of what each is told by the others. A sub-model answers with the mean of its classifiers'
  probabilities. The model's stages must lie inside one another, as those of ``resnet18-exits`` do.
- ``plain``: NeFL's reduced version (Kang et al., B.3), on any residual net: no further classifiers, no distillation,
  the first blocks in a row. Of a block left out the shortcut stays, so that shapes fit the one classifier.

Departures
----------
- A level is a share of the parameters, as in NeFL's comparison: a client gets as many stages (or blocks) as come
  nearest to it, and at least the first.
- The classifier that teaches is held fixed: each learns from what the others say, and none changes in order to be
  learned from. NeFL calls it "self-distillation", in which a teacher is given.
- Norms are static (`nestling.methods.parts.static_norms`), and shared also in ``plain``, where NeFL gave each sub-model
  its own.
- FedDyn's regulariser (`nestling.methods.feddyn`), which the authors use, is an option, and off unless asked for: NeFL
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
from nestling.cut.extract import gone
from nestling.errors import MethodError, nearest
from nestling.kernels.cross_entropy import correct
from nestling.methods.context import ClientContext, Setup, State
from nestling.methods.feddyn import with_feddyn
from nestling.methods.method import Method
from nestling.methods.part import Inner, Part, PlanPart
from nestling.methods.parts.static_norms import StaticNorms
from nestling.methods.rows import OUTPUT
from nestling.tasks.class_loss import count_targets, masked
from nestling.tasks.task import Batch, LossResult

Variant = Literal["full", "plain"]
_NEEDS = "depthfl needs a model with a classifier after every stage, such as 'resnet18-exits'"


@dataclass(frozen=True)
class StagePrefixPlan(PlanPart):
    """The first stages, with their classifiers, whose share of the parameters is nearest to the level."""

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the first stages."""
        del method_state
        if not _has_exits(setup.axes):
            raise MethodError(f"{_NEEDS}: for other residual nets there is variant='plain'")
        return _prefix(setup, ratio, [(block,) for block in setup.axes.blocks], at_least=0)  # the first is no block


@dataclass(frozen=True)
class BlockPrefixPlan(PlanPart):
    """The first residual blocks whose share of the parameters is nearest to the level."""

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the first blocks."""
        del method_state
        if not setup.axes.blocks:
            raise MethodError("depthfl leaves out whole blocks, and this model has none: use a residual net")
        if _has_exits(setup.axes):
            raise MethodError("depthfl with variant='plain' is for models with one classifier: use variant='full'")
        return _prefix(setup, ratio, _groups(setup.axes.blocks), at_least=1)


@dataclass(frozen=True)
class Exits(Part):
    """A loss over the classifiers of all stages, and predictions by their ensemble.

    Attributes
    ----------
    distill
        Whether the classifiers learn from each other.
    ramp
        The round from which on distillation counts in full; 0 for always.
    """

    distill: bool = True
    ramp: int = 300

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return the sum of the classifiers' cross-entropies, and of their divergences from each other.

        That is Σ CE_i + ramp_up · Σ_{i≠j} KL(p_j ‖ p_i) / (n − 1), of means over the batch.
        """
        del inner
        inputs, targets = batch
        held = None if client.mask is None else client.mask.held
        answers = [masked(logits, held) for logits in exits(client.model(inputs))]
        loss = torch.stack([F.cross_entropy(logits, targets) for logits in answers]).sum()
        if self.distill and len(answers) > 1:
            logs = [logits.log_softmax(-1) for logits in answers]
            divergences = [
                F.kl_div(student, teacher.detach(), reduction="batchmean", log_target=True)
                for student in logs
                for teacher in logs
                if student is not teacher
            ]
            loss = loss + ramp_up(client.round, self.ramp) / (len(answers) - 1) * torch.stack(divergences).sum()
        hits = correct(ensemble(answers).detach(), targets).sum()
        return LossResult(loss, count_targets(targets), hits)

    def predict(self, output: Any) -> Tensor:
        """Return the logits of the classifiers of a sub-model together."""
        return ensemble(exits(output))


def ramp_up(round: int, ramp: int) -> float:
    """How much distillation counts in a round: little at first, when there is nothing to learn from each other.

    >>> ramp_up(300, 300), round(ramp_up(150, 300), 4)
    (1.0, 0.2865)
    """
    return math.exp(-5 * (1 - round / ramp) ** 2) if round < ramp else 1.0


def exits(output: object) -> list[Tensor]:
    """The logits of the classifiers that a sub-model has: one that is gone repeats the last that is there."""
    if not isinstance(output, tuple | list):
        raise MethodError(f"{_NEEDS}, that returns a tuple of logits, and not a {type(output).__name__}")
    return list(dict.fromkeys(output))  # a tensor is a key by itself, whatever its values


def ensemble(output: Iterable[Tensor]) -> Tensor:
    """The logarithm of the mean of the classifiers' probabilities, (samples, classes).

    >>> sure, unsure = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> ensemble([sure, unsure]).exp()
    tensor([[0.7000, 0.3000]])
    """
    logs = torch.stack([logits.log_softmax(-1) for logits in output])
    return logs.logsumexp(0) - math.log(len(logs))


def depthfl(variant: Variant = "full", distill: bool = True, ramp: int = 300, feddyn: float = 0.0) -> Method:
    """Return DepthFL.

    Parameters
    ----------
    variant
        ``"full"`` for models with a classifier after every stage, ``"plain"`` for any residual net.
    distill
        Whether the classifiers learn from each other; ``plain`` has only one.
    ramp
        The round from which on distillation counts in full; 0 for always.
    feddyn
        α of FedDyn's regulariser; 0 for none.

    Examples
    --------
    >>> depthfl("plain").name
    'depthfl'
    """
    if variant not in get_args(Variant):
        raise MethodError(f"there is no variant {variant!r} of depthfl{nearest(str(variant), get_args(Variant))}")
    if ramp < 0:
        raise MethodError(f"depthfl's ramp must be a number of rounds of at least 0, not {ramp!r}")
    if variant == "plain":
        method = Method("depthfl", BlockPrefixPlan(), StaticNorms())
    else:
        method = Method("depthfl", StagePrefixPlan(), StaticNorms(), Exits(distill, ramp))
    return with_feddyn(method, feddyn) if feddyn else method


def _has_exits(axes: AxisMap) -> bool:
    """Whether the model returns more than one tensor, and its blocks lie inside one another."""
    blocks = list(axes.blocks)
    inside = all(inner.startswith(f"{outer}.") for outer, inner in pairwise(blocks))
    return bool(blocks) and inside and list(axes.frozen.values()).count(OUTPUT) > 1


def _groups(blocks: Iterable[str]) -> list[tuple[str, ...]]:
    """Blocks in groups: those with the same number in a list, such as attention and MLP, go together."""
    groups: dict[str, list[str]] = {}
    for block in blocks:
        words = block.split(".")
        while words and not words[-1].isdigit():
            words.pop()
        groups.setdefault(".".join(words) or block, []).append(block)
    return [tuple(group) for group in groups.values()]


def _prefix(setup: Setup, ratio: float, groups: list[tuple[str, ...]], at_least: int) -> Plan:
    """Return the plan that keeps the first of some groups of blocks, as many as come nearest to the level."""
    axes = setup.axes
    sizes = {name: math.prod(axes.dims[name].shape) for name in setup.parameters if name not in axes.tied}
    whole = sum(sizes.values())

    def kept(count: int) -> list[str]:
        return [block for group in groups[:count] for block in group]

    def distance(count: int) -> float:
        held = whole - sum(sizes.get(name, 0) for name in gone(axes, kept(count)))
        return abs(held - ratio * whole)

    count = min(range(at_least, len(groups) + 1), key=distance)  # of two as near, the smaller
    if ratio == 1 or count == len(groups):
        return Plan(key="full")
    return Plan(blocks=kept(count), key=f"depth{count}")
