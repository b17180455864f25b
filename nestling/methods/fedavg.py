"""FedAvg: everybody trains the whole model.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Departures: none known. Norms are static, as in all methods here (see nestling.methods.parts.static_norms). For the
papers' baseline "everybody trains the smallest model", set ``model.width`` to that level.
"""

from __future__ import annotations

from nestling.methods.method import Method
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.plans import WholeModel
from nestling.methods.parts.static_norms import StaticNorms


def fedavg(masked: bool = False) -> Method:
    """Return FedAvg: slices are whole models, weighted by samples (Algorithm 1).

    Parameters
    ----------
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> fedavg().weighting
    'samples'
    """
    return Method("fedavg", WholeModel(), StaticNorms(), MaskedLoss() if masked else None, weighting="samples")
