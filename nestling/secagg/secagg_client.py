"""A client in secure aggregation: four messages, each asked for once and in order.

It trusts the server to forward messages, and no further: what it sends lets nobody learn more of its vector than the
sum, as long as fewer than `threshold` clients of its cohort pass on what they know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from nestling.errors import SecAggError
from nestling.secagg.key_agreement import KEY_BYTES, agreed_key, derived, opened, public_key, seal
from nestling.secagg.mask_stream import Residues, mask
from nestling.secagg.secagg_messages import Keys, MaskedVector, Revealed, Shares
from nestling.secagg.shamir import PRIME, SHARE_BYTES, split

_SPARE = 16  # more bytes than the field has: a remainder is uniform up to 2^-128


class SecAggClient:
    """One client in one run of the protocol.

    Parameters
    ----------
    number
        Its number in the cohort, from 1.
    entropy
        32 random bytes that nobody else knows and that serve this run alone: on a device, ``os.urandom(32)``.
    threshold
        How many clients must remain at every step, and how many shares give a secret.
    """

    def __init__(self, number: int, entropy: bytes, threshold: int) -> None:
        if len(entropy) < KEY_BYTES:
            raise SecAggError(f"a client needs {KEY_BYTES} random bytes, not {len(entropy)}")
        self.number, self._entropy, self._threshold = number, entropy, threshold
        self._channel, self._mask = derived(entropy, "channel"), derived(entropy, "mask")
        self._seed = derived(entropy, "seed")
        self._roster: dict[int, Keys] = {}
        self._inbox: dict[int, bytes] = {}
        self._own: tuple[int, int] = 0, 0
        self._done = 0

    def keys(self) -> Keys:
        """Return its public keys."""
        self._next(1)
        return Keys(self.number, public_key(self._channel), public_key(self._mask))

    def shares(self, roster: Mapping[int, Keys]) -> Shares:
        """Return shares of its seed and of its key for the clients of the cohort that sent keys."""
        self._next(2)
        mine = Keys(self.number, public_key(self._channel), public_key(self._mask))
        self._check_enough(len(roster))
        public = [key for keys in roster.values() for key in (keys.channel, keys.mask)]
        if roster.get(self.number) != mine or len(set(public)) < len(public):
            raise SecAggError("the keys of the cohort lack the client's own, or two are the same")
        self._roster = dict(roster)
        seeds = split(int.from_bytes(self._seed, "big"), roster, self._coefficients("seed"))
        keys = split(int.from_bytes(self._mask, "big"), roster, self._coefficients("key"))
        self._own = seeds[self.number], keys[self.number]
        sealed = {
            other: seal(
                agreed_key(self._channel, their.channel, f"share {self.number}>{other}"),
                seeds[other].to_bytes(SHARE_BYTES, "big") + keys[other].to_bytes(SHARE_BYTES, "big"),
            )
            for other, their in roster.items()
            if other != self.number
        }
        return Shares(self.number, sealed, commitment(self._seed))

    def masked(self, residues: Residues, inbox: Mapping[int, bytes]) -> MaskedVector:
        """Return its vector with all masks: its own, and one in common with everybody whose shares are in its inbox."""
        self._next(3)
        if self.number in inbox or not inbox.keys() <= self._roster.keys():
            raise SecAggError("shares came from clients that are not of the cohort")
        self._check_enough(len(inbox) + 1)
        self._inbox = dict(inbox)
        bits = 8 * residues.itemsize
        total = residues + mask(self._seed, len(residues), bits)
        for other in inbox:
            common = mask(agreed_key(self._mask, self._roster[other].mask, "mask"), len(residues), bits)
            total = total + common if self.number < other else total - common
        return MaskedVector(self.number, total)

    def revealed(self, arrived: Collection[int]) -> Revealed:
        """Return its shares of the seeds of those whose vectors arrived, and of the keys of those who dropped out."""
        self._next(4)
        shared = {self.number, *self._inbox}
        if self.number not in arrived or not shared.issuperset(arrived):
            raise SecAggError("the client's own vector did not arrive, or one of a client that had shared nothing")
        self._check_enough(len(arrived))
        seeds, keys = {}, {}
        for other in sorted(shared):
            seed, key = self._own if other == self.number else self._open(other)
            if other in arrived:
                seeds[other] = seed
            else:
                keys[other] = key
        return Revealed(self.number, seeds, keys)

    def _open(self, other: int) -> tuple[int, int]:
        key = agreed_key(self._channel, self._roster[other].channel, f"share {other}>{self.number}")
        text = opened(key, self._inbox[other])
        if len(text) != 2 * SHARE_BYTES:
            raise SecAggError("a sealed message does not hold two shares")
        return int.from_bytes(text[:SHARE_BYTES], "big"), int.from_bytes(text[SHARE_BYTES:], "big")

    def _coefficients(self, purpose: str) -> list[int]:
        size = SHARE_BYTES + _SPARE
        text = derived(self._entropy, f"polynomial {purpose}", size * (self._threshold - 1))
        return [int.from_bytes(text[at : at + size], "big") % PRIME for at in range(0, len(text), size)]

    def _check_enough(self, clients: int) -> None:
        if clients < self._threshold:
            raise SecAggError(f"{clients} clients are left, and this client goes on with {self._threshold} or more")

    def _next(self, step: int) -> None:
        if self._done != step - 1:
            raise SecAggError("each step of secure aggregation is taken once, and in order")
        self._done = step


def commitment(seed: bytes) -> bytes:
    """Return a digest of a random seed, which tells nothing of it.

    >>> len(commitment(bytes(32)))
    32
    """
    return hashlib.sha256(b"nestling secagg seed" + seed).digest()
