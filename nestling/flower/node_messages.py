"""What the server and its nodes say to each other, as JSON: read into typed structures, never executed.

Both sides must have the same version of Nestling, and both the same `FORMAT`: others are refused by name.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, TypeVar

import msgspec

from nestling import __version__
from nestling.cut import Plan
from nestling.errors import DeviceError, PlanError, first_line

FORMAT = "nestling-devices-1"
ANSWER = "answer"  # the name of the tensor with a model's outputs
MAX_HEADER = 2**24  # bytes of JSON: a plan of random units of a large model has some 100 kB

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_T = TypeVar("_T", bound="Message")


class Message(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag=True, tag_field="message"):
    """What every message begins with.

    Attributes
    ----------
    format, version
        The format of messages and the version of Nestling.
    ticket
        A random text that the reply to a request repeats: a reply to another request is refused.
    """

    format: _Text = FORMAT
    version: _Text = __version__
    ticket: _Text = ""


class Question(Message, frozen=True, kw_only=True):
    """Who are you? With `measure`, a node also measures how fast it trains the smallest sub-model."""

    measure: bool = False


class Capacity(Message, frozen=True, kw_only=True):
    """What a node is.

    Attributes
    ----------
    model
        A digest of the model's axes and of the task, which must be the server's.
    client
        The number that its configuration gives it; None if the server is to choose one.
    samples, held
        The number of its samples and, if clients select rows, the classes among them.
    memory
        Bytes that are free for training.
    speed
        Multiply-accumulates per second in training; 0 if it was not measured.
    level
        The largest level that its configuration allows; empty for any.
    """

    model: _Text
    client: _Count | None = None
    samples: _Count = 0
    held: list[_Count] = []
    memory: _Amount = 0.0
    speed: _Amount = 0.0
    level: _Text = ""


class Training(Message, frozen=True, kw_only=True):
    """A `TrainJob`; `run` tells runs apart in what a node keeps from round to round."""

    run: _Text
    round: Annotated[int, msgspec.Meta(ge=1, le=999_999)]
    lr: float
    client: _Count
    level: _Text
    samples: _Count
    seed: _Number
    plan: msgspec.Raw


class Trained(Message, frozen=True, kw_only=True):
    """The reply to a `Training`.

    Attributes
    ----------
    plan
        The digest of the plan that was trained.
    samples, loss, correct
        The sums of `Progress`.
    rows
        The rows that merge, as the JSON text of a plan; empty for all.
    kept
        The round of what the client had kept; 0 for nothing.
    """

    plan: _Text
    samples: _Count
    loss: float | None
    correct: float | None = None
    rows: Annotated[str, msgspec.Meta(max_length=MAX_HEADER)] = ""
    kept: _Count = 0


class Statistics(Message, frozen=True, kw_only=True):
    """Measure the norm statistics of some sub-models, in batches of size `batch`."""

    client: _Count
    plans: list[msgspec.Raw]
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class Measured(Message, frozen=True, kw_only=True):
    """The reply to `Statistics`: the number of batches."""

    batches: Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class OwnDataTest(Message, frozen=True, kw_only=True):
    """A `TestOwnDataJob`: the sub-model is sent with it."""

    client: _Count
    plan: msgspec.Raw
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class OwnDataTested(Message, frozen=True, kw_only=True):
    """The reply to an `OwnDataTest`: of so many samples, so many were predicted right."""

    right: _Count
    samples: _Count


class OwnModelTest(Message, frozen=True, kw_only=True):
    """A `TestClientModelJob`, of what the client kept up to a round: the rest of its model is sent with it."""

    run: _Text
    round: Annotated[int, msgspec.Meta(ge=0, le=999_999)]
    client: _Count
    level: _Text
    samples: _Count
    seed: _Number
    plan: msgspec.Raw
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    norm_batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class OwnModelTested(Message, frozen=True, kw_only=True):
    """The reply to an `OwnModelTest`: the round of what the client had kept.

    The model's outputs come with it, unless nothing was kept (0).
    """

    kept: _Count


def write(message: Message) -> str:
    """Return a message as JSON text.

    >>> read(write(Question(ticket="7")), Question).ticket
    '7'
    """
    return msgspec.json.encode(message).decode()


def read(text: str, *kinds: type[_T]) -> _T:
    """Return the message in a JSON text, which may be anything; raise `DeviceError` if it is of none of these kinds."""
    if len(text) > MAX_HEADER:
        raise DeviceError(f"its header has {len(text)} characters, more than {MAX_HEADER}")
    try:
        stamp = msgspec.json.decode(text, type=_Stamp)
        if stamp.format == FORMAT and stamp.version == __version__:
            return msgspec.json.decode(text, type=reduce(or_, kinds))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise DeviceError(f"its header is not a {names} message: {first_line(problem)[:200]}") from None
    raise DeviceError(
        f"it comes from Nestling {stamp.version[:40]!r} with messages {stamp.format[:40]!r}, and here is "
        f"{__version__!r} with {FORMAT!r}: install the same version on the server and on every device"
    )


def raw(plan: Plan) -> msgspec.Raw:
    """Return a plan as a part of a message."""
    return msgspec.Raw(plan.to_json())


def plan_of(part: msgspec.Raw | str) -> Plan:
    """Return the plan in a part of a message; raise `DeviceError` if it is none."""
    try:
        return Plan.from_json(part if isinstance(part, str) else bytes(part))
    except PlanError as problem:
        raise DeviceError(str(problem)) from None


class _Stamp(msgspec.Struct):
    format: str
    version: str
