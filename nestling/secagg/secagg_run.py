"""A whole run of the protocol in one process, with clients that drop out: what a simulation does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from nestling.secagg.mask_stream import Residues
from nestling.secagg.secagg_client import SecAggClient
from nestling.secagg.secagg_messages import NUMBER_BYTES, inbox_bytes
from nestling.secagg.secagg_server import SecAggServer, TooFewClients

Step = Literal["keys", "shares", "vector", "reveal"]
STEPS: tuple[Step, ...] = get_args(Step)  # in the order of the protocol


@dataclass(eq=False)
class SecureSum:
    """What a run of the protocol gave.

    Attributes
    ----------
    total
        The sum of the vectors of `clients`, as residues; None if too few clients remained.
    clients
        The clients whose vectors are in the sum.
    problem
        Why there is no sum; empty if there is one.
    bytes_up, bytes_down
        The bytes that all clients sent and received.
    """

    total: Residues | None = None
    clients: tuple[int, ...] = ()
    problem: str = ""
    bytes_up: int = 0
    bytes_down: int = 0


def secure_sum(
    vectors: Mapping[int, Callable[[], Residues]],
    entropy: Mapping[int, bytes],
    *,
    threshold: int,
    length: int,
    bits: int,
    drops: Mapping[int, Step] | None = None,
) -> SecureSum:
    """Return the sum of the vectors of clients that stay until they have sent them.

    Parameters
    ----------
    vectors
        Number of a client, from 1 → a function that returns its residues, (length,); it is called when they are masked.
    entropy
        Number of a client → its random bytes.
    threshold
        How many clients must remain at every step.
    length, bits
        The length of the vectors, and k.
    drops
        The step that a client does not take, nor any after it, for clients that drop out.

    Examples
    --------
    >>> import numpy as np
    >>> vectors = {k: lambda k=k: np.full(2, k, "uint32") for k in (1, 2, 3, 4)}
    >>> entropy = {k: bytes([k]) * 32 for k in vectors}
    >>> secure_sum(vectors, entropy, threshold=3, length=2, bits=32).total.tolist()
    [10, 10]
    >>> result = secure_sum(vectors, entropy, threshold=3, length=2, bits=32, drops={1: "vector"})
    >>> result.total.tolist(), result.clients
    ([9, 9], (2, 3, 4))
    >>> secure_sum(vectors, entropy, threshold=3, length=2, bits=32, drops={1: "keys", 4: "vector"}).problem
    '2 clients sent their vectors, and 3 must'
    """
    server, result = SecAggServer(threshold, length, bits), SecureSum()
    try:
        _run(server, result, vectors=vectors, entropy=entropy, threshold=threshold, drops=drops or {})
    except TooFewClients as problem:
        result.problem = str(problem)
    return result


def _run(
    server: SecAggServer,
    result: SecureSum,
    *,
    vectors: Mapping[int, Callable[[], Residues]],
    entropy: Mapping[int, bytes],
    threshold: int,
    drops: Mapping[int, Step],
) -> None:
    def staying(step: Step, clients: Mapping[int, SecAggClient]) -> dict[int, SecAggClient]:
        gone = STEPS[: STEPS.index(step) + 1]
        return {number: client for number, client in clients.items() if drops.get(number) not in gone}

    cohort = staying("keys", {number: SecAggClient(number, entropy[number], threshold) for number in sorted(vectors)})
    keys = [client.keys() for client in cohort.values()]
    result.bytes_up += sum(one.bytes for one in keys)
    roster = server.roster(keys)

    result.bytes_down += len(cohort) * sum(one.bytes for one in keys)
    cohort = staying("shares", cohort)
    shares = [client.shares(roster) for client in cohort.values()]
    result.bytes_up += sum(one.bytes for one in shares)
    inboxes = server.inboxes(shares)

    result.bytes_down += sum(map(inbox_bytes, inboxes.values()))
    cohort = staying("vector", cohort)
    for number, client in cohort.items():
        masked = client.masked(vectors[number](), inboxes[number])
        result.bytes_up += masked.bytes
        server.add(masked)
    server.check_arrived()

    result.bytes_down += len(cohort) * NUMBER_BYTES * len(server.arrived)
    revealed = [client.revealed(server.arrived) for client in staying("reveal", cohort).values()]
    result.bytes_up += sum(one.bytes for one in revealed)
    result.total, result.clients = server.unmasked(revealed), tuple(sorted(server.arrived))
