"""A program that runs an experiment on two Ray nodes and removes one of them in the middle of the first round.

Its argument is the run directory.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from bench.trees import two_nodes
from nestling.experiment.runner import run
from nestling.methods import Part, make
from nestling.settings import FleetSettings
from tests.processes import wait_until
from tests.run_cases import small

LIMIT = 100  # seconds


def experiment(*settings):
    """Eight clients in branches of two: four jobs for two workers."""
    fleet = FleetSettings(clients=8, per_round=8, levels="a-b-d")
    return small(rounds=2, fleet=fleet).with_settings(["server.fan_in=2", *settings])


@dataclass(frozen=True)
class Meeting(Part):
    """A loss that waits, in the first round, until the node is removed; the files of a folder say who is there."""

    folder: str

    def loss(self, client, batch, inner):
        removed = Path(self.folder, "removed")
        if client.round == 1 and not removed.exists():
            Path(self.folder, str(os.getpid())).touch()
            wait_until(removed.exists, LIMIT)
        return inner(batch)


def remove_node(cluster, folder):
    """Kill the second node when both workers are at a job."""
    wait_until(lambda: len(list(folder.iterdir())) == 2, LIMIT)
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    (folder / "removed").touch()


def main(out):
    meeting = Path(f"{out}.meeting")
    meeting.mkdir()
    with two_nodes() as cluster:
        thread = threading.Thread(target=remove_node, args=(cluster, meeting))
        thread.start()
        where = ["engine=ray", "workers=2", f"address={cluster.address}"]
        run(experiment(*where), method=make("heterofl").with_parts(Meeting(str(meeting))), out=out)
        thread.join()


if __name__ == "__main__":
    from tests.engines import removed_node  # its classes are not those of __main__, which workers cannot import

    removed_node.main(sys.argv[1])
