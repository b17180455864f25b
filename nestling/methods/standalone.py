"""Standalone: every client trains a model of its own, of the size that its device can carry, and shares nothing.

The baseline of HeteroFL's tables (§4). Its global accuracy is the mean accuracy of all clients' models on the whole
test set; its local accuracy is that of each client's model on the client's share of the test set.
"""

from __future__ import annotations

from nestling.axes import AxisMap
from nestling.methods.method import Method
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.private import Private
from nestling.methods.parts.static_norms import StaticNorms


def every_tensor(axes: AxisMap) -> frozenset[str]:
    """Return the names of all tensors."""
    return frozenset(axes.dims)


def standalone(masked: bool = False) -> Method:
    """Return the method without federation.

    Parameters
    ----------
    masked
        Whether the loss is over a client's own classes alone (HeteroFL, §4).

    Examples
    --------
    >>> standalone().name
    'standalone'
    """
    return Method("standalone", PrefixPlan(), StaticNorms(), Private(every_tensor), MaskedLoss() if masked else None)
