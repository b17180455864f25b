"""CIFAR-10 and CIFAR-100 in the binary and the Python layout, as a folder or as an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.archive import TAR_SUFFIXES, pick
from nestling.data.cache import Arrays
from nestling.data.readers.unpickle import unpickle
from nestling.errors import DataError

_PIXELS = 3 * 32 * 32

# The training files, the test file, label bytes per record (the last one is used), the key of the labels.
CIFAR10 = (tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch", 1, "labels")
CIFAR100 = (("train",), "test", 2, "fine_labels")  # the coarse labels come first and are ignored


def layouts(*stems: str) -> tuple[tuple[str], ...]:
    """Return the layouts of the folders called `stems`: the folder itself, or an archive of it.

    >>> layouts("cifar-100-binary")[:2]
    (('cifar-100-binary',), ('cifar-100-binary.tar.gz',))
    """
    return tuple((stem + suffix,) for stem in stems for suffix in ("", *TAR_SUFFIXES))


def read(paths: tuple[Path, ...], kind: tuple[tuple[str, ...], str, int, str]) -> Arrays:
    """Read the binary or the Python layout; images are (N, 3, 32, 32), uint8."""
    train, test, label_bytes, key = kind
    pickled = "-py" in paths[0].name  # folders and archives called …-batches-py and …-python hold pickles
    files = pick(paths[0], [name + ("" if pickled else ".bin") for name in (*train, test)])
    parts = {
        name.removesuffix(".bin"): _pickled(data, name, key) if pickled else _binary(data, name, label_bytes)
        for name, data in files.items()
    }
    return {
        "inputs": np.concatenate([parts[name][0] for name in train]),
        "targets": np.concatenate([parts[name][1] for name in train]),
        "test_inputs": parts[test][0],
        "test_targets": parts[test][1],
    }


def _binary(data: bytes, name: str, label_bytes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if not data or len(data) % (label_bytes + _PIXELS):
        raise DataError(
            f"the CIFAR file {name!r} has {len(data)} bytes, which is no multiple of its records' "
            f"{label_bytes + _PIXELS}"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, label_bytes + _PIXELS)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def _pickled(data: bytes, name: str, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    batch = unpickle(data)
    if "data" not in batch or key not in batch:
        raise DataError(f"the CIFAR file {name!r} holds {', '.join(sorted(batch))}, but not 'data' and {key!r}")
    images = np.asarray(batch["data"])
    if images.dtype != np.uint8 or images.shape[1:] != (_PIXELS,):
        raise DataError(f"the CIFAR file {name!r} holds images of type {images.dtype} and shape {images.shape}")
    return images.reshape(-1, 3, 32, 32), np.asarray(batch[key], dtype=np.int64)
