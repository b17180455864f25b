"""Every update of a device is checked before it touches the sum of a round; what does not fit is refused.

A norm cannot be compared before there are others. So the first five updates of a round wait for each other, and every
later one is compared with all that came before it: memory does not grow with the number of clients.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nestling.client.transport import decode_update, travelling
from nestling.cut import Plan
from nestling.cut.accept import averaged, finite
from nestling.cut.extract import State
from nestling.errors import DeviceError, NestlingError
from nestling.events import report
from nestling.flower.array_codec import decode_state
from nestling.flower.link import Packet
from nestling.flower.node_messages import Trained, plan_of, read
from nestling.methods.context import Setup
from nestling.methods.messages import Progress, TrainJob, Update

LEAST_NORMS = 5  # updates of a round below which norms are not compared
_SLACK = 2**16  # bytes that a packet may hold beside its values: names, headers of arrays
_CHUNK = 2**18  # values that are compared at a time, so that their differences stay in the cache


@dataclass(frozen=True, eq=False)
class IssuedJob:
    """A job that was handed out, and its ticket."""

    job: TrainJob
    ticket: str


class CheckedUpdate(NamedTuple):
    """An update that fits its job.

    Attributes
    ----------
    update, reply
        The update, and what came with it.
    size
        The norm of its change. It is of the same order in slices of all widths: a small slice has fewer values, but
        each changes more. The change per value is not: with levels a to e, honest devices of level e reach four times
        the median.
    """

    update: Update
    reply: Trained
    size: float


def checked_update(setup: Setup, issued: IssuedJob, sent: State, packet: Packet) -> CheckedUpdate:
    """Return the update in a reply; raise `DeviceError` unless it is a whole answer to this very job.

    Parameters
    ----------
    setup, issued
        The experiment, and the job.
    sent
        The slice that the client was sent.
    packet
        The reply.
    """
    job = issued.job
    template = {name: sent[name] for name in travelling(setup, sent)}
    values = sum(tensor.numel() * tensor.itemsize for tensor in template.values())
    most = values + _SLACK + 200 * len(template)
    if packet.bytes > most:
        raise DeviceError(f"it holds {packet.bytes} bytes, more than the {most} that its slice may take")
    reply = read(packet.header, Trained)
    if reply.ticket != issued.ticket:
        raise DeviceError("it is the reply to another job")
    if reply.plan != job.plan.digest:
        raise DeviceError(f"it is of the plan {reply.plan[:20]!r}, not of {job.plan.digest!r}, which was issued")
    progress = _progress(reply)
    rows = plan_of(reply.rows) if reply.rows else None
    if rows is not None:
        _check_rows(setup, job, rows)
    update = Update((job.who,), job.plan, rows, {}, progress)
    if setup.upload.format == "dense":
        if packet.blob:
            raise DeviceError("it holds a compressed upload, and this experiment sends every value as it is")
        received = decode_state(packet.tensors, template)
        state = {**sent, **received}
        names = [name for name in state if name not in setup.user_frozen]
        update = _with_state(update, {name: state[setup.axes.tied.get(name, name)] for name in names})
    else:
        decode_state(packet.tensors, {})
        try:
            update = decode_update(setup, _with_state(update, {}, packet.blob), sent)
        except NestlingError as problem:
            raise DeviceError(f"its upload cannot be decoded: {problem}") from None
    shared = {name: tensor for name, tensor in update.state.items() if name not in setup.private}
    update = _with_state(update, shared, update.message)  # what the client keeps to itself is on its device
    squares = 0.0
    for name in template:
        new, old = update.state[name], sent[name]
        if averaged(new):
            change = _squared_change(new, old)
            if not math.isfinite(change) and not finite(_flat(new)):  # a finite change is of finite values
                raise DeviceError(f"the tensor {name!r} holds values that are not finite")
            squares += change if name in setup.parameters else 0.0
    return CheckedUpdate(update, reply, math.sqrt(squares))


def _squared_change(new: Tensor, old: Tensor) -> float:
    """Return the sum of the squares of all differences between two tensors."""
    pairs = zip(_flat(new).split(_CHUNK), _flat(old).split(_CHUNK), strict=True)
    changes = (one - other for one, other in pairs)
    return sum(float(torch.dot(change, change)) for change in changes)


def _flat(tensor: Tensor) -> Tensor:
    """Return all values as a row of real numbers, of single precision or more."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return (tensor.float() if tensor.itemsize < 4 else tensor).reshape(-1)


class NormBound:
    """Refuses updates of a round whose change is far larger than the others'.

    Parameters
    ----------
    most
        How many times the median of the round a change may be; 0 for any.
    expected
        How many updates are expected: below five, norms are not compared.
    """

    def __init__(self, most: float, expected: int) -> None:
        self._most = most if expected >= LEAST_NORMS else 0.0
        self._sizes: list[float] = []
        self._held: list[tuple[Update, float]] = []

    def admit(self, update: Update, size: float) -> Iterator[Update]:
        """Yield the updates that may be merged now, in the order in which they came."""
        self._sizes.append(size)
        self._held.append((update, size))
        if not self._most or len(self._sizes) >= LEAST_NORMS:
            yield from self.rest()

    def rest(self) -> Iterator[Update]:
        """Yield those that still wait for others to be compared with."""
        held, self._held = self._held, []
        median = statistics.median(self._sizes) if self._sizes else 0.0
        compared = self._most and len(self._sizes) >= LEAST_NORMS
        for update, size in held:
            if compared and size > self._most * median:
                client = update.who[0].client
                report(
                    "update refused",
                    f"the update of client {client} is refused: the norm of its change is {size:.3g}, more than "
                    f"{self._most:g} times the median of this round, {median:.3g}",
                )
            else:
                yield update


def _with_state(update: Update, state: dict[str, Tensor], message: bytes | None = None) -> Update:
    return Update(update.who, update.plan, update.rows, state, update.progress, message=message)


def _progress(reply: Trained) -> Progress:
    if reply.loss is None or not math.isfinite(reply.loss):
        raise DeviceError("its training loss is not a finite number")
    if reply.correct is not None and not 0 <= reply.correct <= reply.samples:
        raise DeviceError(f"it says that {reply.correct:g} of {reply.samples} answers were correct")
    return Progress(reply.samples, reply.loss, reply.correct)


def _check_rows(setup: Setup, job: TrainJob, rows: Plan) -> None:
    """Raise unless rows are of the output or of embeddings, and among those that were sent."""
    if not setup.method.overriding("output_mask"):
        raise DeviceError(f"it merges some rows only, and {setup.method.name} merges all")
    if rows.blocks is not None or not rows.runs.keys() <= set(setup.row_axes):
        raise DeviceError("it merges rows of axes that have none")
    for axis, runs in rows.runs.items():
        size = setup.axes.table[axis].size
        kept = job.plan.runs.get(axis, ((0, size),))
        if not all(any(a <= start and stop <= b for a, b in kept) for start, stop in runs):
            raise DeviceError(f"it merges rows of the axis {axis!r} that were not sent")
