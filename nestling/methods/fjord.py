"""FjORD: a device trains, batch by batch, widths drawn from those it can carry, so that narrower ones nest in wider.

Horváth et al., FjORD: Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered Dropout,
NeurIPS 2021.

Departures
----------
- Statistics of norms are those of each width, because they are asked for per tested sub-model
  (nestling.methods.parts.static_norms); affine parameters are shared by slice.
- Weight decay and momentum act on all weights of the client's sub-model, also on those outside the width of the batch.
- Distillation uses temperature 1 and equal weights of the two terms (§3.3 leaves both open).
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from nestling.errors import MethodError
from nestling.methods.context import ClientContext
from nestling.methods.method import Method, prefix
from nestling.methods.parts.losses import cross_entropy, entropy, masked
from nestling.methods.parts.nested_submodel import narrower


def ordered_dropout(
    context: ClientContext, inputs: Tensor, targets: Tensor, widths: tuple[float, ...], distill: bool
) -> tuple[Tensor, Tensor]:
    """The loss at a width drawn for this batch from those up to the client's own (§3.2), with distillation (§3.3)."""
    possible = [width for width in widths or context.levels if width < context.ratio] + [context.ratio]
    width = possible[context.draw.integers(len(possible))]
    if width == context.ratio:
        return cross_entropy(context, inputs, targets)
    small, weights = narrower(context, width)
    logits = masked(functional_call(small, weights, (inputs,)), context.labels)
    if not distill:
        return entropy(context, logits, targets)
    hard, teacher = cross_entropy(context, inputs, targets)
    asked = targets.flatten() >= 0
    soft = F.cross_entropy(logits.flatten(0, -2)[asked], teacher.detach().flatten(0, -2)[asked].softmax(-1))
    return hard + soft, teacher


def fjord(distill: bool = True, widths: tuple[float, ...] = ()) -> Method:
    """Return FjORD; a batch may draw the levels of the fleet, or these `widths`, up to the client's own.

    >>> fjord(distill=False).weighting
    'samples'
    """
    if not all(0 < width <= 1 for width in widths):
        raise MethodError(f"fjord's widths must be numbers above 0 and at most 1, not {widths!r}")
    loss = partial(ordered_dropout, widths=tuple(sorted(widths)), distill=distill)
    return Method("fjord", plan=prefix, loss=loss, weighting="samples")
