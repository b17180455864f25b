"""FjORD: for every batch a device draws one of the widths that it can carry, so narrow models nest in wide ones.

Horváth et al., FjORD: Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered Dropout,
NeurIPS 2021.

A client receives the first units of every axis. For each batch it draws a width up to its own and trains the model of
that width inside its own (ordered dropout, §3); its full width is the teacher of narrower ones (self-distillation).

Variants
--------
- ``original``: the above.
- ``nefl``: the FjORD of NeFL's tables (Kang et al., 2023, A.3 and B.3), which is NeFL-W with fixed step sizes. A client
  trains the model of its own width alone, nothing is drawn or distilled, and every width has norms for itself: affine
  parameters, and running statistics that are updated in training. All clients have the same weight in the merge.

Departures
----------
- In ``original``, every width has its own norm statistics, because they are measured for each tested
  sub-model (nestling.methods.parts.static_norms); affine parameters are shared by slice.
- Weight decay and momentum act on all weights of the client's sub-model, also on those outside the width of the batch.
- Distillation uses temperature 1, and adds the two terms with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch.nn.functional as F
from torch.func import functional_call

from nestling.data.federated import ClientData
from nestling.errors import MethodError, nearest
from nestling.methods.context import ClientContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import Inner, Part
from nestling.methods.parts.nested_submodel import nested_submodel
from nestling.methods.parts.per_submodel import NORMS, PerSubmodel
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.scaler import Scaler
from nestling.methods.parts.static_norms import StaticNorms
from nestling.model_inputs import arguments, forward, logits_of
from nestling.tasks.class_loss import masked
from nestling.tasks.task import Batch, LossResult

Variant = Literal["original", "nefl"]


@dataclass(frozen=True)
class OrderedDropout(Part):
    """The loss at a width that is drawn for each batch, up to the client's own, with self-distillation (§3).

    Attributes
    ----------
    distill
        Whether the client's full width is the teacher of the width that was drawn.
    widths
        The widths to draw from, increasing; empty for the levels of the fleet.
    """

    distill: bool = True
    widths: tuple[float, ...] = ()

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error for tasks without classes: distillation and the nested loss compare logits."""
        del public
        if not setup.task.classes:
            raise MethodError(f"ordered dropout needs classes, and {setup.task.name} has none")
        if setup.task.class_dim != -1:
            raise MethodError(
                f"ordered dropout cannot train {setup.task.name}, whose classes are not the last dimension"
            )

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return the loss of a batch."""
        task, (inputs, targets) = client.setup.task, batch
        # 1. Draw a width uniformly from those that the client can carry.
        smaller = [width for width in self.widths or client.setup.ratios if width < client.ratio]
        widths = [*smaller, client.ratio]
        width = widths[client.draw.integers(len(widths))]
        if width == client.ratio:
            return inner(batch)
        # 2. Run the model of that width, whose weights are slices of the client's.
        small, weights = nested_submodel(client, width)
        student = logits_of(functional_call(small, weights, *arguments(inputs)))
        if not self.distill:
            return task.loss_of(student, targets, client.mask)[0]
        # 3. The full width learns the targets, and the drawn width learns the predictions of the full width.
        logits = masked(student, None if client.mask is None else client.mask.held)
        hard, teacher = task.loss_of(forward(client.model, inputs), targets, client.mask)
        rows = targets.flatten() >= 0
        soft = F.cross_entropy(logits.flatten(0, -2)[rows], teacher.detach().flatten(0, -2)[rows].softmax(-1))
        return replace(hard, value=hard.value + soft)


def fjord(distill: bool = True, widths: tuple[float, ...] = (), variant: Variant = "original") -> Method:
    """Return FjORD.

    Parameters
    ----------
    distill
        Whether a client's full width is the teacher of the width that was drawn; in ``nefl`` none is drawn.
    widths
        The widths that batches draw from, up to the client's own; empty for the levels of the fleet.
    variant
        ``"original"`` for FjORD as its authors describe it, ``"nefl"`` for that of NeFL's tables.

    Examples
    --------
    >>> fjord(distill=False).weighting
    'samples'
    >>> fjord(variant="nefl").parts
    (PerSubmodel(patterns=('norms',)),)
    """
    if variant not in get_args(Variant):
        raise MethodError(f"there is no variant {variant!r} of fjord{nearest(str(variant), get_args(Variant))}")
    if not all(0 < width <= 1 for width in widths):
        raise MethodError(f"fjord's widths must be numbers above 0 and at most 1, not {widths!r}")
    if variant == "nefl":
        if widths:
            raise MethodError(f"fjord with variant='nefl' draws no widths, such as {widths!r}: leave out `widths`")
        return Method("fjord", PrefixPlan(), PerSubmodel((NORMS,)))
    dropout = OrderedDropout(distill, tuple(sorted(widths)))
    return Method("fjord", PrefixPlan(), StaticNorms(), dropout, weighting="samples")


def with_ordered_dropout(method: Method, distill: bool = True) -> Method:
    """Return a method whose clients also train the narrower models inside their own, as in FjORD.

    >>> from nestling.methods.heterofl import heterofl
    >>> with_ordered_dropout(heterofl(scaler=False)).parts[-1]
    OrderedDropout(distill=True, widths=())
    """
    if not isinstance(method.plan, PrefixPlan):
        raise MethodError(f"ordered dropout needs slices that keep the first units of every axis, unlike {method.name}")
    if method.overriding("loss"):
        raise MethodError(f"ordered dropout cannot be combined with {method.name}, which has a loss of its own")
    if any(isinstance(part, PerSubmodel) for part in method.parts):
        raise MethodError(
            f"ordered dropout cannot be combined with {method.name}, whose sub-models have norms of their own, as "
            "narrower models inside a client's would train those of another: use shared norms"
        )
    if any(isinstance(part, Scaler) for part in method.parts):
        raise MethodError(
            "ordered dropout cannot be combined with the Scaler, which divides by one ratio: set options.scaler=false"
        )
    return method.with_parts(OrderedDropout(distill))
