"""UCI's human activity recognition: motion of 30 people's phones, windows of 128 samples in nine channels.

The users are real, so the data is naturally non-IID: 21 people in the training set, 9 others in the test set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.archive import contents
from nestling.data.cache import Arrays
from nestling.errors import DataError

_WINDOW = 128
_CHANNELS = tuple(f"{signal}_{axis}" for signal in ("total_acc", "body_acc", "body_gyro") for axis in "xyz")

LAYOUTS = (
    ("uci_har_inertial.npz",),
    ("UCI HAR Dataset",),
    ("UCI HAR Dataset.zip",),
    ("human+activity+recognition+using+smartphones.zip",),  # the same within another zip
)


def read(paths: tuple[Path, ...]) -> Arrays:
    """Read the windows (N, 9, 128), float32, each channel normalised by the training users' mean and deviation."""
    arrays = dict(_read_segments(paths[0]) if paths[0].suffix == ".npz" else _read_texts(paths[0]))
    mean = arrays["inputs"].mean((0, 2), dtype=np.float64, keepdims=True)
    deviation = arrays["inputs"].std((0, 2), dtype=np.float64, keepdims=True)
    if not deviation.all():
        raise DataError(f"{str(paths[0])!r} has a channel that never changes")
    for key in ("inputs", "test_inputs"):
        arrays[key] = ((arrays[key] - mean) / deviation).astype(np.float32)
    return arrays


def _read_segments(path: Path) -> Arrays:
    """Join segments of 64 samples: UCI's windows overlap by half, so each is a segment and the previous one."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in ("segments", "activity", "subject", "is_test", "pos")}
    second = np.flatnonzero(arrays["pos"] > 0)  # the position in an unbroken run: 0 has no previous segment
    windows = np.concatenate([arrays["segments"][second - 1], arrays["segments"][second]], axis=1).swapaxes(1, 2)
    activity, subject = arrays["activity"][second], arrays["subject"][second]
    test = arrays["is_test"][second] > 0
    return _part("", windows[~test], activity[~test], subject[~test]) | _part(
        "test_", windows[test], activity[test], subject[test]
    )


def _read_texts(path: Path) -> Arrays:
    """Read the folder that UCI publishes, or its zip."""
    parts = ("train", "test")
    columns = ("y", "subject", *(f"Inertial Signals/{channel}" for channel in _CHANNELS))
    names = [f"{part}/{column}_{part}.txt" for part in parts for column in columns]

    def key(name: str) -> str:
        return next((known for known in names if name.endswith(f"/{known}")), "")

    values = {
        key(name): np.array(data.split(), dtype=np.float32)
        for name, data in contents(path, lambda name: bool(key(name)))
    }
    if missing := [name for name in names if name not in values]:
        raise DataError(f"{str(path)!r} does not hold {missing[0]!r}")
    arrays: dict[str, NDArray[Any]] = {}
    for part, prefix in zip(parts, ("", "test_"), strict=True):
        activity, subject, *signals = (values[f"{part}/{column}_{part}.txt"] for column in columns)
        windows = np.stack([signal.reshape(-1, _WINDOW) for signal in signals], axis=1)
        arrays |= _part(prefix, windows, activity - 1, subject)
    return arrays


def _part(prefix: str, windows: NDArray[Any], activity: NDArray[Any], subject: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {
        f"{prefix}inputs": windows,
        f"{prefix}targets": activity.astype(np.int64),
        f"{prefix}users": subject.astype(np.int64),
    }
