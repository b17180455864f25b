"""The simulated clock: how long a client, and a synchronous round of clients, would take on real devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nestling.fleet.devices import Device
from nestling.number_checks import real


@dataclass(frozen=True)
class Timing:
    """The seconds that a client spends on download, computation and upload, one after the other."""

    download: float
    compute: float
    upload: float

    def __post_init__(self) -> None:
        for field in ("download", "compute", "upload"):
            real(f"the seconds of {field}", getattr(self, field), least=0)

    @property
    def total(self) -> float:
        """The sum of the three."""
        return self.download + self.compute + self.upload


def time_of(device: Device, bytes_down: float, bytes_up: float, macs: float) -> Timing:
    """Return how long a device takes to receive, to compute and to send.

    `macs` are those of all training steps in the round; see `fit.TRAINING` for their ratio to a forward pass.

    >>> time_of(Device("toy", memory=1e9, speed=100, down=10, up=5), bytes_down=20, bytes_up=20, macs=50)
    Timing(download=2.0, compute=0.5, upload=4.0)
    """
    return Timing(
        download=real("the bytes to receive", bytes_down, least=0) / device.down,
        compute=real("the MACs to compute", macs, least=0) / device.speed,
        upload=real("the bytes to send", bytes_up, least=0) / device.up,
    )


@dataclass(frozen=True)
class RoundClock:
    """The duration of a round, the clients that finished in time, and those that did not.

    Attributes
    ----------
    seconds
        The duration.
    finished, dropped
        The clients that finished, and those that missed the deadline.
    ignored
        Those that the round did not wait for, because enough others were faster.
    """

    seconds: float
    finished: tuple[int, ...]
    dropped: tuple[int, ...]
    ignored: tuple[int, ...] = ()


def round_clock(timings: Mapping[int, Timing], deadline: float | None = None, first: int | None = None) -> RoundClock:
    """Return how long a synchronous round takes, and which clients finish in time.

    The round ends with its slowest client, or at the deadline, without the clients that are slower. With `first`, it
    ends earlier if so many are there, and ignores the others. A round without clients takes no time.

    >>> quick, slow = Timing(1, 2, 1), Timing(10, 90, 20)
    >>> round_clock({3: slow, 7: quick})
    RoundClock(seconds=120, finished=(3, 7), dropped=(), ignored=())
    >>> round_clock({3: slow, 7: quick}, deadline=60)
    RoundClock(seconds=60.0, finished=(7,), dropped=(3,), ignored=())
    >>> round_clock({3: slow, 7: quick}, first=1)
    RoundClock(seconds=4, finished=(7,), dropped=(), ignored=(3,))
    """
    if first is not None and first < len(timings):
        order = sorted(timings, key=lambda client: (timings[client].total, client))
        last = timings[order[first - 1]].total if first else 0.0
        if deadline is None or last <= real("the deadline in seconds", deadline, above=0):
            return RoundClock(last, tuple(sorted(order[:first])), (), tuple(sorted(order[first:])))
    if deadline is not None:
        deadline = real("the deadline in seconds", deadline, above=0)
        dropped = tuple(sorted(client for client, timing in timings.items() if timing.total > deadline))
        if dropped:
            return RoundClock(deadline, tuple(sorted(timings.keys() - set(dropped))), dropped)
    return RoundClock(max((timing.total for timing in timings.values()), default=0.0), tuple(sorted(timings)), ())
