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

from nestling.methods.method import Method, prefix


def heterofl(scaler: bool = True, masked: bool = True) -> Method:
    """Return HeteroFL, with its Scaler and its masked loss (§3).

    >>> heterofl(scaler=False).scaler
    False
    """
    return Method("heterofl", plan=prefix, scaler=scaler, masked=masked)
