"""Measure a device: the bandwidth of its memory, and its class among the simulated devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch

from nestling.fleet import DEVICES, Device

_COPIED = 2**26  # bytes: far more than caches hold
_COPIES = 9


def memory_bandwidth(size: int = _COPIED, copies: int = _COPIES) -> float:
    """Return the bytes per second that are read and written when a large tensor is copied: the median of nine copies.

    >>> memory_bandwidth(2**16, copies=3) > 0
    True
    """
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros_like(source)
    times = []
    for _ in range(copies):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return 2 * size / max(statistics.median(times), 1e-9)


def device_class(figures: Mapping[str, float], devices: Mapping[str, Device] = DEVICES) -> tuple[str, str]:
    """Return the class of a device, and the figure that keeps it out of the next larger one.

    Its class is the largest of the simulated devices, by speed, that it equals in all of the `figures`: ``memory``,
    ``speed``, ``down``, ``up``; if it reaches none, the smallest. The second result is empty for the largest class.

    >>> device_class({"memory": 16e9, "speed": 7e9})
    ('phone-mid', 'speed')
    >>> device_class({"memory": 16e9, "speed": 7e9, "up": 1e5})
    ('phone-low', 'up')
    """
    by_speed = sorted(devices.values(), key=lambda device: device.speed)
    reached = by_speed[0]
    for device in by_speed:
        below = [name for name, value in figures.items() if value < getattr(device, name)]
        if below:
            return reached.name, below[0]
        reached = device
    return reached.name, ""
