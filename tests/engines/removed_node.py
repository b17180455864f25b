"""A program that runs an experiment on two Ray nodes and removes one of them in the middle of the first round.

Its arguments are the run directory and settings.
"""

from __future__ import annotations

import sys

from bench.trees import two_nodes
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.settings import FleetSettings
from tests.run_cases import small


def experiment(*settings):
    """Eight clients in branches of two: four jobs for two workers."""
    fleet = FleetSettings(clients=8, per_round=8, levels="a-b-d")
    return small(rounds=2, fleet=fleet).with_settings(["server.fan_in=2", "local.epochs=5", *settings])


class RemoveNode(Callback):
    """Kills the second node when the first reply arrives: its worker is at another job then."""

    def __init__(self, cluster):
        self._cluster = cluster

    def on_client(self):
        for node in list(self._cluster.worker_nodes):
            self._cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    folder, *settings = sys.argv[1:]
    with two_nodes() as cluster:
        where = ["engine=ray", "workers=2", f"address={cluster.address}"]
        run(experiment(*settings, *where), out=folder, callbacks=[RemoveNode(cluster)])
