"""FedMorphProx: FedMorph with FedProx's term, which keeps clients near the weights they received.

FedMorph (nestling.methods.fedmorph), appendix C.4: μ = 0.01, data from Dirichlet(0.4). Departures: those of FedMorph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nestling.methods.fedmorph import fedmorph
from nestling.methods.method import Method
from nestling.methods.parts.proximal import Proximal


def fedmorphprox(*, mu: float = 0.01, **options: Any) -> Method:
    """Return FedMorphProx; its other options are FedMorph's.

    Parameters
    ----------
    mu
        μ, the weight of the proximal term.
    **options
        Options of FedMorph.

    Examples
    --------
    >>> fedmorphprox(ratio=0.1).proximal
    0.01
    """
    return replace(fedmorph(**options), name="fedmorphprox").with_parts(Proximal(mu))
