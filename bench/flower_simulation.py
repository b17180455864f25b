"""Flower's simulation for the benchmark: its default backend, with an actor of one thread on every core."""

from __future__ import annotations

import os
from collections.abc import Callable
from tempfile import TemporaryDirectory

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation


def simulate(serve: Callable[[Grid], None], client_app: ClientApp, clients: int) -> None:
    """Simulate so many clients while `serve` does what a server does."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid)

    with TemporaryDirectory() as home:
        os.environ["FLWR_HOME"] = home  # Flower's own files, gone with this program
        run_simulation(
            server_app,
            client_app,
            num_supernodes=clients,
            backend_config={
                "init_args": {"address": "local", "num_cpus": len(os.sched_getaffinity(0))},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
