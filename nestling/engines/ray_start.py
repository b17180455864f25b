"""Join a Ray cluster, or start one on this machine that listens to no other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from nestling.errors import RunError, first_line
from nestling.imported import need

_PER_CORE = 16  # the maximum number of workers per core of a Ray that we start
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: our own Ray uses 127.0.0.1 only
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the default of future versions; avoids a warning
}


def need_ray() -> Any:
    """Return the package ray; raise `RunError` if it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return need("ray", "ray", "the Ray engine needs", RunError)


def begin_ray(ray: Any, workers: int, address: str) -> None:
    """Join the Ray at an address, or start one here."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address:
        host, colon, port = address.rpartition(":")
        try:
            if colon and port.isdigit() and "/" not in host:  # fail at once; Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            with _own_handlers():
                ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as problem:
            raise RunError(f"no Ray can be joined at {address!r}: {first_line(problem)}") from problem
        return
    most = _PER_CORE * (os.cpu_count() or 1)
    if workers > most:
        raise RunError(f"workers={workers} are more than a Ray started here may have: {_PER_CORE} per core, {most}")
    with _own_handlers():
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    if not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise RunError(
            "a Ray started here would listen to other machines, because ray was imported before: set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or start Ray yourself and give its address"
        )


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Restore the caller's handler of SIGTERM, if any: Ray replaces it by one that just exits."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
