"""Whether the Ray processes that this one depends on are still there.

When its raylet has died, Ray ends the process that uses it at its next access to shared objects: at once, with exit
code 1 and without a message, so that not even finished rounds could be saved. The engine therefore asks here before
every call of Ray that may access them, which takes a microsecond.

What cannot be prevented: a raylet that dies while this process waits for its answer ends the process all the same (5 of
28 kills at random moments, with Ray 2.55). A run then loses the rounds since its last checkpoint.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from nestling.errors import RunFailed


class RayServices:
    """The raylet of this machine, and the head of a Ray that we started ourselves; a cluster's head may come back."""

    def __init__(self, ray: Any, ours: bool) -> None:
        context = ray.get_runtime_context()
        nodes = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
        addresses = [(str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])) for node in nodes]
        if ours:
            host, _, port = context.gcs_address.rpartition(":")
            addresses.append((host.strip("[]"), int(port)))
        self._connections = [_Connection(*address) for address in addresses]

    def check(self) -> None:
        """Raise `RunFailed` if one of the services has ended."""
        if not all(connection.alive() for connection in self._connections):
            raise RunFailed(
                "Ray has ended on this machine (it crashed, or was killed, often for lack of memory): what is saved "
                "can be resumed, with fewer workers or engine=local if it happens again"
            )

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


class _Connection:
    """A connection that nothing is sent over: the system closes it when the service's process ends."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._socket: socket.socket | None = None

    def alive(self) -> bool:
        return self._open() or self._connect()

    def _open(self) -> bool:
        """Return whether the connection still stands. What the service sends (its greeting) is thrown away."""
        if self._socket is None:
            return False
        try:
            while self._socket.recv(65536):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()  # by the service's end, or by a service that does not keep silent connections
        return False

    def _connect(self) -> bool:
        """Return whether the service accepts connections; one that is slow to answer is taken to be alive."""
        try:
            self._socket = socket.create_connection(self._address, timeout=1.0)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        self._socket.setblocking(False)
        return True

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
