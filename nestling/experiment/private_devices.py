"""Differential privacy (`parts=dp:…`) on real devices: what the server must not do for ε to hold.

Models leave the server when a round hands them out, or when they are tested on devices. A round that is thrown away
(`TooFewReplies`) raises before its sum is noised: nothing of it leaves, so its tries cost nothing. Every round is saved
before the next one hands its model out, so no round is run again whose model devices have seen.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from nestling.errors import ConfigError, RunError
from nestling.experiment.directory import DEVICES, SECONDS
from nestling.experiment.simulation import Simulation
from nestling.flower.nodes import RoundRules
from nestling.methods import Method, Setup
from nestling.methods.privacy.central_dp import CentralDP


def is_private(method: Method) -> bool:
    """Return whether the merge of a method is differentially private.

    >>> from nestling.methods import make
    >>> is_private(make("fedavg", {}, "dp:noise=1")), is_private(make("fedavg", {}, "median"))
    (True, False)
    """
    return any(isinstance(part, CentralDP) for part in method.parts)


def on_devices(setup: Setup) -> Setup:
    """Return a setup whose clients are real devices: not drawn at random, and noise that none of them can compute.

    Devices know the seed of the experiment. The secret is new whenever a server starts and is written nowhere, so no
    two sums ever get the same noise.
    """
    clients = setup.participation
    clients = None if clients is None else replace(clients, sampled=False)
    return replace(setup, participation=clients, secret=secrets.token_hex(16))


def check_private(simulation: Simulation, rules: RoundRules, folder: Path | None) -> None:
    """Raise if a client could change more than its own share of a sum, or its ε would not be counted."""
    setup, settings = simulation.setup, simulation.settings
    if not is_private(setup.method):
        return
    if rules.norm_bound:
        raise ConfigError(
            f"dp does not go with norm-bound={rules.norm_bound:g}, as one client then decides whether others are "
            "merged (dp clips every change anyway): set norm-bound=0"
        )
    if settings.fleet.over_selection != 1:
        raise ConfigError(
            f"dp does not go with fleet.over_selection={settings.fleet.over_selection:g} on devices, as the reply of "
            "one client then displaces another's: set fleet.over_selection=1"
        )
    if settings.fleet.sampling != "fixed":
        raise ConfigError(
            f"dp cannot make use of fleet.sampling={settings.fleet.sampling} on devices, as nobody knows who is "
            "online: set fleet.sampling=fixed"
        )
    if settings.evaluate.local == "own-data" or setup.private:
        tested = "evaluate.local=own-data" if settings.evaluate.local == "own-data" else setup.method.name
        raise ConfigError(
            f"dp does not go with {tested} on devices, which would get the model of a round to test before the round "
            "is saved, and again if the server stops in between: use evaluate.local=masked, and a method whose clients "
            "have no model of their own"
        )
    if folder is not None and (folder / SECONDS).exists() and not (folder / DEVICES).exists():
        raise RunError(
            f"{str(folder)!r} began in simulation, whose ε is that of random sampling: with dp, go on in simulation, "
            "or start a new run on devices"
        )


def check_not_begun_on_devices(folder: Path, method: Method) -> None:
    """Raise if a private run began on devices: a simulation would count the ε of its rounds as randomly sampled."""
    if is_private(method) and (folder / DEVICES).exists():
        raise RunError(
            f"{str(folder)!r} began on devices, whose ε assumes no sampling: with dp, go on with devices, or start a "
            "new run in simulation"
        )
