"""LG-FedAvg: clients keep the first layers private, and share the last ones.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.

Departures
----------
- The paper's first phase, FedAvg until it converges, is left out: run FedAvg first and start from its model instead.
- The paper's test for new clients, an ensemble of all local models, is not implemented: global accuracy is the mean
  accuracy of the clients' own models, as in HeteroFL's tables.
- Layers are counted in the order in which the model registers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nestling.axes import AxisMap
from nestling.errors import MethodError
from nestling.methods.context import Owner, Setup
from nestling.methods.method import Method
from nestling.methods.part import Part
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.plans import WholeModel
from nestling.methods.parts.static_norms import StaticNorms


@dataclass(frozen=True)
class PrivateLayers(Part):
    """Clients keep all tensors but those of the last `shared` layers."""

    shared: int

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Claim the tensors for clients."""
        return dict.fromkeys(sorted(all_but_the_last(setup.axes, self.shared)), "client")


def all_but_the_last(axes: AxisMap, layers: int) -> frozenset[str]:
    """Return the state names before the last few layers that have a weight of at least two dims."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name, dims in axes.dims.items() if len(dims) > 1))
    if layers >= len(modules):
        raise MethodError(
            f"lg-fedavg cannot share {layers} layers of a model that has {len(modules)}: at least one stays private"
        )
    names = list(axes.dims)
    first = next(index for index, name in enumerate(names) if name.rpartition(".")[0] == modules[-layers])
    shared = set(names[first:])
    shared |= {axes.tied[name] for name in shared & axes.tied.keys()}  # a tensor with two names is shared under both
    return frozenset(names) - shared - {name for name, other in axes.tied.items() if other in shared}


def lg_fedavg(layers: int = 2, masked: bool = False) -> Method:
    """Return LG-FedAvg.

    Parameters
    ----------
    layers
        The last layers, which are shared; all others stay with the clients.
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> lg_fedavg().name
    'lg-fedavg'
    """
    if layers < 1:
        raise MethodError(f"lg-fedavg shares at least 1 layer, not {layers}")
    return Method(
        "lg-fedavg",
        WholeModel(),
        StaticNorms(),
        PrivateLayers(layers),
        MaskedLoss() if masked else None,
        weighting="samples",
    )
