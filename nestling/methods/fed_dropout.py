"""Federated Dropout: every device trains a random set of channels, drawn anew each round.

Caldas et al., Expanding the Reach of Federated Learning by Reducing Client Resource Requirements, 2018; with a width
per client, as the baseline of FedRolex (2022).

Departures: one set is drawn per axis, not per layer, so layers that are added to each other keep the same channels. In
the authors' code of FedRolex each convolution draws its own, and identity skips add unrelated channels.
"""

from __future__ import annotations

from dataclasses import replace

from nestling.cut import Plan, plan
from nestling.methods.heterofl import heterofl
from nestling.methods.method import Method, Turn


def random_set(turn: Turn) -> Plan:
    """A random set of every axis, drawn for this client and round."""
    return plan(turn.axes, turn.ratio, "random", seed=turn.seed)


def fed_dropout(scaler: bool = True, masked: bool = True) -> Method:
    """Return Federated Dropout.

    >>> fed_dropout().name
    'fed-dropout'
    """
    return replace(heterofl(scaler, masked), name="fed-dropout", plan=random_set)
