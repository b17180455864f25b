"""Simulated devices: their memory, speed, bandwidth and availability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.errors import FleetError, nearest
from nestling.fleet.apportion import deal, name_and_share, normalise, parts
from nestling.number_checks import real, whole
from nestling.seeds import derive


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes
    ----------
    name
        Its name in tables.
    memory
        Bytes available for training.
    speed
        Multiply-accumulates per second in training, far below the chip's peak.
    down, up
        Bytes per second from and to the server.
    available
        The probability of being online in a round.
    """

    name: str
    memory: float
    speed: float
    down: float
    up: float
    available: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise FleetError(f"a device needs a name, such as 'phone', not {self.name!r}")
        for amount in ("memory", "speed", "down", "up"):
            real(f"the {amount} of device {self.name!r}", getattr(self, amount), above=0)
        real(f"the availability of device {self.name!r}", self.available, least=0, most=1)


_KB, _MB = 10**3, 10**6
_MIB, _GIB = 2**20, 2**30

# Orders of magnitude, not measurements. Speed: the peak in float32 is cores · clock · multiply-accumulates per cycle;
# training small layers reaches a tenth to a quarter of it. Memory: what the system leaves to one program. Bandwidth:
# uploads from phones stay below 1 MB/s (McMahan et al. 2017). Availability: phones train only when idle,
# charging and on a free network, mostly at night (Bonawitz et al. 2019).
DEVICES = {
    device.name: device
    for device in (
        # a microcontroller with external memory: 2 · 240 MHz · 1, a slow bus; always on, a lossy radio
        Device("sensor", 8 * _MIB, 5e7, 100 * _KB, 50 * _KB, 0.8),
        # 4 small cores of 1.4 GHz · 2 = 11 G; 2 GB in all; a weak mobile network
        Device("phone-low", 256 * _MIB, 1.5e9, 500 * _KB, 100 * _KB, 0.2),
        # 2 large cores of 2.2 GHz · 8 = 35 G; 4 to 6 GB in all
        Device("phone-mid", 768 * _MIB, 6e9, 2 * _MB, 400 * _KB, 0.3),
        # 4 large cores of 3 GHz · 16 = 190 G, throttled when warm; 8 to 12 GB in all; home network
        Device("phone-high", 2 * _GIB, 2.5e10, 10 * _MB, 1 * _MB, 0.3),
        # 8 cores of 3 GHz · 16 = 380 G; 16 GB in all
        Device("laptop", 8 * _GIB, 8e10, 10 * _MB, 2 * _MB, 0.5),
        # a graphics card of 20 TFLOP/s = 10 T, with its own memory; a wired network
        Device("workstation", 16 * _GIB, 2e12, 100 * _MB, 50 * _MB, 0.9),
    )
}


@dataclass(frozen=True)
class Population:
    """The devices of all clients, as made by `population`; or `listed`: the place in `mix` of every client's device."""

    clients: int
    mix: tuple[tuple[Device, float], ...]
    seed: int
    listed: NDArray[np.integer[Any]] | None = field(default=None, compare=False, repr=False)

    def device_of(self, client: int) -> Device:
        """Return the device of a client, the same in all rounds.

        >>> population(3, "laptop").device_of(2).name
        'laptop'
        """
        return self.mix[int(self._device_numbers[whole("the client", client, 0, self.clients - 1)])][0]

    @cached_property
    def _device_numbers(self) -> NDArray[np.integer[Any]]:
        if self.listed is not None:
            return self.listed
        return deal([share for _, share in self.mix], self.clients, self.seed, "devices")


def population(
    clients: int,
    mix: str | Mapping[str, float] | Mapping[Device, float] | Sequence[str | Device | tuple[str | Device, float]],
    seed: int = 0,
) -> Population:
    """Assign devices to clients, in exact numbers (largest remainder) and random order.

    Parameters
    ----------
    clients
        The number of clients.
    mix
        Names from `DEVICES`, or your own devices, with shares: ``"phone-low:3,laptop:1"``, a mapping, or a list of
        names, devices or pairs. Without shares, equal numbers.
    seed
        The seed of the order.

    Examples
    --------
    >>> people = population(8, "phone-low:3,laptop:1")
    >>> sorted(people.device_of(client).name for client in range(8))
    ['laptop', 'laptop', 'phone-low', 'phone-low', 'phone-low', 'phone-low', 'phone-low', 'phone-low']
    """
    pairs = parts("a mix of devices", mix, lambda text: text.split(","), name_and_share)
    devices = [_find_device(kind) for kind, _ in pairs]
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise FleetError(f"the device {name!r} is named twice: name each device once")
    shares = normalise(devices, [share for _, share in pairs], lambda device: device.name)
    return Population(whole("the number of clients", clients, 1), shares, whole("the seed", seed, 0))


def _find_device(kind: object) -> Device:
    if isinstance(kind, Device):
        return kind
    if not isinstance(kind, str) or kind not in DEVICES:
        raise FleetError(f"there is no device {kind!r}{nearest(str(kind), DEVICES)}")
    return DEVICES[kind]


def online(device: Device, client: int, round: int, seed: int = 0) -> bool:
    """Return whether a client with this device is online in a round.

    >>> online(DEVICES["laptop"], client=4, round=0) == online(DEVICES["laptop"], client=4, round=0)
    True
    """
    draw = derive(whole("the seed", seed, 0), "online", whole("the round", round, 0), whole("the client", client, 0))
    return draw < device.available * 2**63
