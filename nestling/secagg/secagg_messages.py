"""What clients and the server send each other in secure aggregation, and the bytes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nestling.secagg.key_agreement import KEY_BYTES
from nestling.secagg.mask_stream import Residues
from nestling.secagg.shamir import SHARE_BYTES

NUMBER_BYTES = 4  # of the number of a client


@dataclass(frozen=True)
class Keys:
    """Round 0, to the server and from it to all: the public keys of a client.

    Attributes
    ----------
    client
        Its number in the cohort, from 1.
    channel
        For messages that are for it alone.
    mask
        For the masks that it has in common with others.
    """

    client: int
    channel: bytes
    mask: bytes

    @property
    def bytes(self) -> int:
        """The size of the message."""
        return NUMBER_BYTES + 2 * KEY_BYTES


@dataclass(frozen=True)
class Shares:
    """Round 1, to the server: shares of the secrets of a client, sealed for every other client.

    Attributes
    ----------
    client
        Its number.
    sealed
        Number of the other client → the shares that only it can read.
    commitment
        A digest of the seed of its own mask, by which wrong shares of it are noticed.
    """

    client: int
    sealed: Mapping[int, bytes]
    commitment: bytes

    @property
    def bytes(self) -> int:
        """The size of the message."""
        return NUMBER_BYTES + len(self.commitment) + inbox_bytes(self.sealed)


@dataclass(frozen=True, eq=False)
class MaskedVector:
    """Round 2, to the server: the vector of a client with all of its masks, as residues modulo 2^k."""

    client: int
    residues: Residues

    @property
    def bytes(self) -> int:
        """The size of the message."""
        return NUMBER_BYTES + self.residues.nbytes


@dataclass(frozen=True)
class Revealed:
    """Round 3, to the server: shares of one secret of every other client, and never of both.

    Attributes
    ----------
    client
        Its number.
    seeds
        For clients whose vectors arrived: their number → the share of the seed of their own mask.
    keys
        For clients that dropped out after they had shared: the share of the key of their common masks.
    """

    client: int
    seeds: Mapping[int, int]
    keys: Mapping[int, int]

    @property
    def bytes(self) -> int:
        """The size of the message."""
        return NUMBER_BYTES + (len(self.seeds) + len(self.keys)) * (NUMBER_BYTES + SHARE_BYTES)


def inbox_bytes(sealed: Mapping[int, bytes]) -> int:
    """Return the size of sealed shares with the numbers of those that they are from, or for.

    >>> inbox_bytes({2: bytes(82), 3: bytes(82)})
    172
    """
    return sum(NUMBER_BYTES + len(text) for text in sealed.values())
