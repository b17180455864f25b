"""FedProx: FedAvg with a term that keeps clients near the weights they received.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Departures: every client trains for the same number of epochs; the paper also lets slow clients do less work.
"""

from __future__ import annotations

from dataclasses import replace

from nestling.methods.fedavg import fedavg
from nestling.methods.method import Method
from nestling.methods.parts.proximal import Proximal


def fedprox(mu: float = 1e-2, masked: bool = False) -> Method:
    """Return FedProx.

    Parameters
    ----------
    mu
        μ, the weight of the proximal term (Eq. 2).
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> fedprox(mu=0.1).proximal
    0.1
    """
    return replace(fedavg(masked), name="fedprox").with_parts(Proximal(mu))
