"""The largest level that fits a device's memory and, if there is a deadline, its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nestling.errors import FleetError
from nestling.fleet.clock import time_of
from nestling.fleet.devices import Device
from nestling.fleet.levels import Level
from nestling.number_checks import real, whole

# MACs of a training step per MAC of its forward pass: gradients of the inputs and of the weights add one each.
TRAINING = 3


class Costs(Protocol):
    """The cost of a level, as `nestling.cost` returns it: bytes to send, MACs of a forward pass, memory of a step."""

    @property
    def bytes(self) -> int: ...  # noqa: D102

    @property
    def macs(self) -> int: ...  # noqa: D102

    @property
    def memory(self) -> int: ...  # noqa: D102


def level_for(device: Device, costs: Mapping[Level, Costs], deadline: float | None = None, steps: int = 1) -> Level:
    """Return the largest level whose training fits a device.

    Parameters
    ----------
    device
        The device.
    costs
        The cost of each level, at the batch size of the training.
    deadline
        Seconds within which a client must receive, train and send; without it, only memory counts.
    steps
        Training steps in a round, for the deadline.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from nestling.fleet import DEVICES, parse_level
    >>> large = SimpleNamespace(bytes=4e7, macs=1e9, memory=1e9)
    >>> small = SimpleNamespace(bytes=1e6, macs=1e7, memory=5e7)
    >>> costs = {parse_level("a"): large, parse_level("e"): small}
    >>> level_for(DEVICES["phone-low"], costs).name, level_for(DEVICES["phone-high"], costs).name
    ('e', 'a')
    >>> level_for(DEVICES["phone-high"], costs, deadline=30).name
    'e'
    """
    if not costs:
        raise FleetError(f"there are no levels to choose from for the device {device.name!r}")
    steps = whole("the number of steps", steps, 1)
    limit = None if deadline is None else real("the deadline in seconds", deadline, above=0)

    def seconds(cost: Costs) -> float:
        return time_of(device, cost.bytes, cost.bytes, TRAINING * cost.macs * steps).total

    fits_memory = [level for level, cost in costs.items() if cost.memory <= device.memory]
    if not fits_memory:
        level, cost = min(costs.items(), key=lambda item: item[1].memory)
        raise FleetError(
            f"the device {device.name!r} has {device.memory:,.0f} bytes of memory, but level {level.name!r} needs "
            f"{cost.memory:,.0f}, the least of all: use a smaller level, model or batch"
        )
    fits_deadline = [level for level in fits_memory if limit is None or seconds(costs[level]) <= limit]
    if not fits_deadline:
        level = min(fits_memory, key=lambda level: seconds(costs[level]))
        raise FleetError(
            f"the device {device.name!r} takes {seconds(costs[level]):.3g} s at level {level.name!r}, the quickest of "
            f"those that fit its memory, but the deadline is {limit:.3g} s: use a smaller level or a later deadline"
        )
    return max(fits_deadline, key=lambda level: level.ratio)
