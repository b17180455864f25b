"""HeteroFL: the smaller the device, the fewer of the first channels of every layer it trains.

Diao, Ding, Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021.

Departures
----------
- Statistics of the norms are asked for in evaluation rounds only; in the authors' code, after every round.
- Statistics are taken with the Scaler off, as the model is tested with it off. For the whole model (rate 1), the only
  one that the paper tests, there is no difference.
- With the masked loss, rows of the last layer merge from the clients that hold their class. Rows of special tokens
  merge from everyone (the authors' code never merges the row of the mask token).
- Clients are weighted equally, as in the paper's experiments.
"""

from __future__ import annotations

from nestling.methods.method import Method
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.scaler import Scaler
from nestling.methods.parts.static_norms import StaticNorms


def heterofl(scaler: bool = True, masked: bool = True) -> Method:
    """Return HeteroFL, with its Scaler and its masked loss (§3).

    >>> heterofl(scaler=False).parts
    (StaticNorms(), MaskedLoss())
    """
    return Method(
        "heterofl",
        PrefixPlan(),  # the first units of every axis, as many as the level carries
        StaticNorms(),  # batch statistics in training; clients are asked for them before tests
        Scaler() if scaler else None,  # hidden layers divide by the ratio in training
        MaskedLoss() if masked else None,  # a client's own classes only, and only their rows merge
    )
