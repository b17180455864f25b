"""Trees: rounds on two Ray nodes, with every update sent to the driver and with partial merges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from bench.apart import apart
from bench.figure import Figure
from nestling.engines import RayEngine
from nestling.engines.ray_start import need_ray
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.experiment.worker_factory import worker_factory
from nestling.server.state import ServerState
from nestling.settings import Data, Experiment, FleetSettings, LocalTraining, Model, ServerSettings

FAN_IN = 25
_STORE = 400 * 2**20  # bytes of each node's object store


def trees(quick: bool = False) -> Iterator[Figure]:
    """Rounds of 200 clients of resnet18 on two Ray nodes: bytes into the driver, and time."""
    if find_spec("ray") is None:
        yield Figure("rounds on two Ray nodes", None, "bytes", note="was not measured: ray is not installed")
        return
    clients = 10 if quick else 200
    flat, tree = apart(rounds_and_tell, clients, quick)
    name = f"round of {clients} clients of resnet18 on two Ray nodes"
    yield Figure(f"{name}: bytes into the driver", flat["bytes"] / 1e6, "MB", note="every client by itself")
    saved = flat["bytes"] / tree["bytes"]
    yield Figure("… with partial merges", tree["bytes"] / 1e6, "MB", note=f"branches of {FAN_IN}: {saved:.1f} × less")
    yield Figure(f"{name}: time", flat["seconds"], "s", note="every client by itself")
    yield Figure("… with partial merges", tree["seconds"], "s", note=f"branches of {FAN_IN} clients")


@contextmanager
def two_nodes(cpus: int = 1, store: int = _STORE) -> Iterator[Any]:
    """Start two Ray nodes on this machine, which listen on 127.0.0.1; yield the cluster, and end it.

    The second node is the only one in ``cluster.worker_nodes``.
    """
    need_ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - ray reads its environment when it is imported

    node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": store, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


def rounds_and_tell(clients: int, quick: bool) -> list[dict[str, float]]:
    """Run a round on two Ray nodes without and one with partial merges; tell the seconds and bytes of each."""
    with two_nodes() as cluster:
        return [_round(cluster.address, clients, fan_in, quick) for fan_in in (0, FAN_IN)]


def _round(address: str, clients: int, fan_in: int, quick: bool) -> dict[str, float]:
    experiment = Experiment(
        rounds=2,
        engine="ray",
        workers=2,
        model=Model(name="resnet18", options={"widths": [8, 8, 16, 16]} if quick else {}),
        data=Data(name="digits"),
        fleet=FleetSettings(clients=clients, per_round=clients, levels="a-b-c-d-e"),
        local=LocalTraining(epochs=1, batch_size=10),
        server=ServerSettings(fan_in=fan_in),
    )
    overrides = Overrides(experiment)
    simulation = simulate(overrides)
    engine = RayEngine(worker_factory(overrides, simulation), experiment.workers, address)
    try:
        simulator = Simulator(simulation, engine)
        state, _ = simulator.run_round(ServerState.start(simulation.setup))  # workers start, models are built
        before, start = engine.received, time.perf_counter()
        simulator.run_round(state)
        return {"seconds": time.perf_counter() - start, "bytes": engine.received - before}
    finally:
        engine.close()
