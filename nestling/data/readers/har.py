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
    test = arrays["is_test"][second] > 0
    return _split(windows, arrays["activity"][second], arrays["subject"][second], test)


def _read_texts(path: Path) -> Arrays:
    """Read the folder that UCI publishes, or its zip."""
    names = {
        f"{part}/{name}": part == "test"
        for part in ("train", "test")
        for name in (
            *(f"Inertial Signals/{channel}_{part}.txt" for channel in _CHANNELS),
            f"y_{part}.txt",
            f"subject_{part}.txt",
        )
    }

    def key(name: str) -> str:
        return next((known for known in names if name.endswith(f"/{known}")), "")

    columns = {
        key(name): np.array(data.split(), dtype=np.float32)
        for name, data in contents(path, lambda name: bool(key(name)))
    }
    if missing := [name for name in names if name not in columns]:
        raise DataError(f"{str(path)!r} does not hold {missing[0]!r}")
    parts = []
    for part in ("train", "test"):
        signals = [columns[f"{part}/Inertial Signals/{name}_{part}.txt"].reshape(-1, _WINDOW) for name in _CHANNELS]
        activity, subject = columns[f"{part}/y_{part}.txt"] - 1, columns[f"{part}/subject_{part}.txt"]
        parts.append((np.stack(signals, axis=1), activity, subject))
    test = np.repeat([False, True], [len(windows) for windows, _, _ in parts])
    windows, activity, subject = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    return _split(windows, activity, subject, test)


def _split(
    windows: NDArray[Any], activity: NDArray[Any], subject: NDArray[Any], test: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of the training and the test users."""
    arrays = {}
    for prefix, part in (("", ~test), ("test_", test)):
        arrays[f"{prefix}inputs"] = windows[part]
        arrays[f"{prefix}targets"] = activity[part].astype(np.int64)
        arrays[f"{prefix}users"] = subject[part].astype(np.int64)
    return arrays
