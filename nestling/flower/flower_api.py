"""All that is used of Flower, in one module: a release that moves something breaks here, and `tests/flower` says what.

The rest of the package talks to nodes through a `Link`, and to Flower through the names of this module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from nestling.errors import DeviceError, RunFailed, first_line
from nestling.flower.joined_arrays import join, split
from nestling.flower.link import Answer, EncodedTensor, Kind, Packet, Request
from nestling.flower.node_messages import MAX_HEADER

__all__ = [
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "ContextMemory",
    "Grid",
    "GridLink",
    "Message",
    "MetricRecord",
    "Result",
    "ServerApp",
    "Strategy",
    "answering_app",
    "array_record",
    "content_of",
    "packet_in",
]

_HEADER, _TENSORS, _BLOB, _KEPT = "nestling.header", "nestling.tensors", "nestling.blob", "nestling.kept"
_JOINED, _INDEX = "nestling.joined", "nestling.index"
_TYPES: dict[Kind, str] = {
    "query": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "evaluate": MessageType.EVALUATE,
}
_NPY = "numpy.ndarray"  # what Flower calls arrays in NPY format
Answering = Callable[[Kind, Packet, Context], Packet]


class FlowerArrays(NamedTuple):
    """Tensors as Flower's arrays, and the index of those that are joined; empty if none is."""

    record: ArrayRecord
    joined_index: bytes


class GridLink:
    """The nodes of a Flower federation: a `Link` over Flower's Grid.

    Flower hashes the bytes of an array once for every object that holds it, so requests with the same tensors that
    follow each other share Flower's arrays.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._tensors: dict[str, EncodedTensor] = {}  # of the last request, until replies are fetched
        self._arrays: FlowerArrays | None = None

    def nodes(self) -> Sequence[int]:
        """Return the ids of the nodes that are online."""
        return [int(node) for node in self._called(self._grid.get_node_ids)]

    def push(self, request: Request) -> str | None:
        """Send a request; return its id, or None if it could not be sent."""
        tensors = dict(request.packet.tensors)
        if self._arrays is None or tensors != self._tensors:  # quick where these are the same objects
            self._tensors, self._arrays = tensors, flower_arrays(tensors)
        message = Message(
            content=content_of(request.packet, self._arrays),
            dst_node_id=request.node,
            message_type=_TYPES[request.kind],
            ttl=request.seconds,
            group_id=str(request.round),
        )
        names = list(self._called(self._grid.push_messages, [message]))
        return str(names[0]) if names and names[0] else None

    def pull(self, requests: Sequence[str]) -> list[Answer]:
        """Return the answers to some requests that have arrived."""
        if not requests:
            return []
        self._tensors, self._arrays = {}, None
        messages = self._called(self._grid.pull_messages, list(requests))
        return [_answer(message) for message in messages]

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as problem:  # Flower's transports raise errors of several libraries
            raise RunFailed(
                f"the SuperLink does not answer ({type(problem).__name__}: {first_line(problem)[:200]}): start it "
                "again, and then this run, which goes on after its last whole round"
            ) from problem


class ContextMemory:
    """What a node keeps in the state of its Flower context: it survives between messages, not a restart of the node."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def read(self) -> dict[int, bytes]:
        """Return all versions."""
        record = self._state.get(_KEPT)
        items = record.items() if isinstance(record, ConfigRecord) else ()
        return {int(name): value for name, value in items if name.isdigit() and isinstance(value, bytes)}

    def write(self, versions: dict[int, bytes]) -> None:
        """Keep these versions and no others."""
        self._state[_KEPT] = ConfigRecord({str(round): data for round, data in versions.items()})


def answering_app(answer: Answering) -> ClientApp:
    """Return a ClientApp whose messages a function answers."""
    app = ClientApp()

    def register(kind: Kind) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            return Message(content_of(answer(kind, packet_in(message.content), context)), reply_to=message)

        return handle

    app.query()(register("query"))
    app.train()(register("train"))
    app.evaluate()(register("evaluate"))
    return app


def array_record(tensors: Mapping[str, EncodedTensor]) -> ArrayRecord:
    """Return encoded tensors as Flower's arrays."""
    return ArrayRecord(
        {
            name: Array(dtype=part.dtype, shape=tuple(part.shape), stype=_NPY, data=part.data)
            for name, part in tensors.items()
        }
    )


def flower_arrays(tensors: Mapping[str, EncodedTensor]) -> FlowerArrays:
    """Return encoded tensors as they are sent: small ones as one array."""
    arrays, joined, index = join(tensors)
    if joined is not None:
        arrays[_JOINED] = joined
    return FlowerArrays(array_record(arrays), index)


def content_of(packet: Packet, arrays: FlowerArrays | None = None) -> RecordDict:
    """Return a packet as the content of a message; `arrays` are its tensors, where they were sent before."""
    record, index = arrays or flower_arrays(packet.tensors)
    config: dict[str, Any] = {_HEADER: packet.header}
    config |= {name: data for name, data in ((_BLOB, packet.blob), (_INDEX, index)) if data}
    return RecordDict({_TENSORS: record, _HEADER: ConfigRecord(config)})


def packet_in(content: RecordDict) -> Packet:
    """Return the packet in a message, which may hold anything else."""
    arrays, config = content.get(_TENSORS), content.get(_HEADER)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord) or len(content) != 2:
        raise DeviceError("it is not a message of Nestling")
    header, blob, index = config.get(_HEADER), config.get(_BLOB, b""), config.get(_INDEX, b"")
    if not isinstance(header, str) or len(header) > MAX_HEADER or not isinstance(blob, bytes):
        raise DeviceError("its header is not a text of Nestling")
    tensors = {name: _tensor(name, array) for name, array in arrays.items()}
    joined = tensors.pop(_JOINED, None)
    small = split(joined, index) if joined is not None and isinstance(index, bytes) else {}
    if small.keys() & tensors.keys():
        raise DeviceError(f"it holds the tensor {min(small.keys() & tensors.keys())[:60]!r} twice")
    return Packet(header, small | tensors, blob)


def _tensor(name: str, array: Array) -> EncodedTensor:
    if array.stype != _NPY:
        raise DeviceError(f"the tensor {name[:60]!r} is serialised as {array.stype[:40]!r}, not {_NPY!r}")
    return EncodedTensor(array.dtype, tuple(array.shape), array.data)


def _answer(message: Message) -> Answer:
    request = message.metadata.reply_to_message_id
    if message.has_error():
        return Answer(request, error=f"{message.error.reason} (code {message.error.code})")
    try:
        return Answer(request, packet_in(message.content))
    except DeviceError as problem:
        return Answer(request, error=str(problem))
