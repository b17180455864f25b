"""The server in secure aggregation: it forwards keys and shares, adds masked vectors, and unmasks their sum.

It learns who took part in which step and the sum, nothing else. Whatever is wrong is refused, so that no wrong sum
comes out: keys are compared with the public ones, seeds with their digests (the paper needs no digests, as its clients
are honest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from nestling.errors import SecAggError
from nestling.secagg.key_agreement import KEY_BYTES, agreed_key, public_key
from nestling.secagg.mask_stream import Residues, mask, residue_type
from nestling.secagg.secagg_client import commitment
from nestling.secagg.secagg_messages import Keys, MaskedVector, Revealed, Shares
from nestling.secagg.shamir import join


class TooFewClients(SecAggError):
    """Fewer clients are left than the threshold: the protocol ends without a sum."""


class SecAggServer:
    """The server of one cohort, in one run of the protocol.

    Parameters
    ----------
    threshold
        How many clients must remain at every step.
    length, bits
        The length of the vectors, and k of their residues modulo 2^k.
    """

    def __init__(self, threshold: int, length: int, bits: int) -> None:
        self._threshold, self._length, self._bits = threshold, length, bits
        self._keys: dict[int, Keys] = {}
        self._commitments: dict[int, bytes] = {}
        self._arrived: set[int] = set()
        self._total: Residues = np.zeros(length, residue_type(bits))

    @property
    def arrived(self) -> frozenset[int]:
        """The clients whose masked vectors arrived."""
        return frozenset(self._arrived)

    def roster(self, keys: Iterable[Keys]) -> dict[int, Keys]:
        """Return the keys that every client gets, by client."""
        self._keys = {one.client: one for one in keys}
        self._check_enough(len(self._keys), "sent keys")
        return dict(self._keys)

    def inboxes(self, shares: Iterable[Shares]) -> dict[int, dict[int, bytes]]:
        """Return the sealed shares that every client gets: client → client that sent them → shares."""
        sent = {one.client: one for one in shares}
        self._check_enough(len(sent), "shared their secrets")
        if not sent.keys() <= self._keys.keys():
            raise SecAggError("shares came from clients that had sent no keys")
        self._commitments = {client: one.commitment for client, one in sent.items()}
        try:
            return {to: {by: one.sealed[to] for by, one in sent.items() if by != to} for to in sent}
        except KeyError as problem:
            raise SecAggError("a client has not shared its secrets with everybody") from problem

    def add(self, masked: MaskedVector) -> None:
        """Add the masked vector of a client."""
        client, residues = masked.client, masked.residues
        if client not in self._commitments or client in self._arrived:
            raise SecAggError(f"the vector of client {client} came twice, or before its shares")
        if residues.shape != (self._length,) or residues.dtype != residue_type(self._bits):
            raise SecAggError(f"the vector of client {client} has another length or type than was agreed")
        self._total += residues
        self._arrived.add(client)

    def check_arrived(self) -> None:
        """Raise unless enough masked vectors arrived for clients to reveal anything."""
        self._check_enough(len(self._arrived), "sent their vectors")

    def unmasked(self, revealed: Iterable[Revealed]) -> Residues:
        """Return the sum of the vectors that arrived, (length,), from the shares that clients revealed."""
        answers = [one for one in revealed if one.client in self._arrived]
        self._check_enough(len(answers), "revealed their shares")
        total = self._total.copy()
        for client in sorted(self._commitments):
            if client in self._arrived:
                seed = self._secret({one.client: one.seeds.get(client) for one in answers})
                if commitment(seed) != self._commitments[client]:
                    raise SecAggError(f"the shares of client {client}'s seed do not give it: one of them is wrong")
                total -= mask(seed, self._length, self._bits)
            else:
                key = self._secret({one.client: one.keys.get(client) for one in answers})
                if public_key(key) != self._keys[client].mask:
                    raise SecAggError(f"the shares of client {client}'s key do not give it: one of them is wrong")
                for other in sorted(self._arrived):  # undo what the others masked in common with it
                    common = mask(agreed_key(key, self._keys[other].mask, "mask"), self._length, self._bits)
                    total = total - common if other < client else total + common
        return total

    def _secret(self, shares: Mapping[int, int | None]) -> bytes:
        secret = join({number: share for number, share in shares.items() if share is not None}, self._threshold)
        if secret >= 2 ** (8 * KEY_BYTES):
            raise SecAggError("the shares of a secret do not give a key: one of them is wrong")
        return secret.to_bytes(KEY_BYTES, "big")

    def _check_enough(self, clients: int, deed: str) -> None:
        if clients < self._threshold:
            raise TooFewClients(f"{clients} clients {deed}, and {self._threshold} must")
