"""HeteroFL: the smaller the device, the fewer of the first channels of every layer it trains.

Diao, Ding, Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021.

A round (Algorithm 1): a client of level p receives the first r_m = r^(p-1) of the channels of every layer (§3.1) and
trains them, without running statistics (§3.2), with the outputs of hidden layers divided by r_m (§3.3), on the classes
that it holds (§4). The server then averages every weight over the clients that held it (Eqs. 1 to 3), as for all
methods (`nestling.server.aggregate`).

Departures
----------
- Clients measure the statistics of norms in evaluation rounds only; in the authors' code, after every round.
- Statistics are measured with the Scaler off, as the model is tested with it off. For the whole model (rate 1), the
  only one that the paper tests, there is no difference.
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
    """Return HeteroFL.

    Parameters
    ----------
    scaler
        Whether hidden layers divide their outputs by the ratio in training (§3.3).
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (§4).

    Examples
    --------
    >>> heterofl(scaler=False).parts
    (StaticNorms(), MaskedLoss())
    """
    return Method(
        "heterofl",
        PrefixPlan(),  # §3.1: the first units of every axis, as many as the level carries
        StaticNorms(),  # §3.2: batch statistics in training; clients measure global ones before tests
        Scaler() if scaler else None,  # §3.3, Eq. 4: in training, hidden layers divide their outputs by the ratio
        MaskedLoss() if masked else None,  # §4: the loss is over a client's own classes, and only their rows merge
    )
