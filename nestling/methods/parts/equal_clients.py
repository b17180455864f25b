"""Merges in which every client counts alike, whatever its number of samples or its width."""

from __future__ import annotations

from nestling.errors import ConfigError
from nestling.events import report
from nestling.methods.context import Setup


def check_equal_clients(setup: Setup, part: str) -> None:
    """Raise if the settings weigh clients; report if the method does, as its weights will not be used.

    Parameters
    ----------
    setup
        The experiment.
    part
        The name of the part that counts clients alike.
    """
    method, weighting = setup.method, setup.server.weighting
    if weighting in ("samples", "width"):
        raise ConfigError(
            f"{part} counts every client alike, which server.weighting={weighting} contradicts: "
            "set server.weighting=none"
        )
    if weighting == "method" and method.weighting != "none":
        unused = f"{method.name}'s weights by {method.weighting} are not used"
        report("weighting not used", f"{part} counts every client alike: {unused}")
