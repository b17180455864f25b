"""`Link`: what carries messages between the server and its nodes. `nestling.flower.flower_api` has the one over Flower.

Nothing here is Flower's, so that everything but the transport runs, and is tested, without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Kind = Literal["query", "train", "evaluate"]


class EncodedTensor(NamedTuple):
    """A tensor as it travels: its type and shape, and its bytes as an NPY file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, eq=False)
class Packet:
    """The content of a message.

    Attributes
    ----------
    header
        JSON: one of the structures of `nestling.flower.node_messages`.
    tensors
        Tensors by name.
    blob
        A compressed upload (`nestling.upload`); empty if there is none.
    """

    header: str
    tensors: Mapping[str, EncodedTensor] = field(default_factory=dict)
    blob: bytes = b""

    @property
    def bytes(self) -> int:
        """The size of the content."""
        return len(self.header) + len(self.blob) + sum(len(tensor.data) for tensor in self.tensors.values())


@dataclass(frozen=True, eq=False)
class Request:
    """A message to a node: what is asked, in which round (0 outside of rounds), and how long an answer is of use."""

    node: int
    kind: Kind
    round: int
    seconds: float
    packet: Packet


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a request: its content, or the reason why there is none."""

    request: str
    packet: Packet | None = None
    error: str = ""


class Link(Protocol):
    """A connection to all nodes."""

    def nodes(self) -> Sequence[int]:
        """Return the ids of the nodes that are online."""

    def push(self, request: Request) -> str | None:
        """Send a request; return its id, or None if it could not be sent."""

    def pull(self, requests: Sequence[str]) -> list[Answer]:
        """Return the answers to some requests that have arrived; none is returned twice."""
