"""The idx layout: MNIST, Fashion-MNIST and EMNIST."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.archive import pick
from nestling.data.cache import Arrays
from nestling.errors import DataError


def files(prefix: str = "", test: str = "t10k") -> tuple[str, ...]:
    """Return the names of the four files of a dataset.

    >>> files("emnist-letters-", test="test")[2]
    'emnist-letters-test-images-idx3-ubyte'
    """
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"{prefix}{part}-{kind}-ubyte" for part in ("train", test) for kind in kinds)


def read(
    paths: tuple[Path, ...], names: tuple[str, ...] = (), transposed: bool = False, first_label: int = 0
) -> Arrays:
    """Read four idx files, or an archive that holds them.

    Parameters
    ----------
    paths
        The files in the order of :func:`files`, plain or .gz; or one archive.
    names
        The names of the four files in an archive, without the suffix .gz.
    transposed
        Whether images are transposed, as those of EMNIST are.
    first_label
        The number of the first class in the files; EMNIST's letters start at 1.
    """
    if len(paths) == 1:
        packed = pick(paths[0], [f"{name}.gz" for name in names])
        raw = {name: packed[f"{name}.gz"] for name in names}
    else:
        raw = {str(path): path.read_bytes() for path in paths}
    images, labels, test_images, test_labels = (parse(data, name) for name, data in raw.items())
    if transposed:
        images, test_images = images.swapaxes(1, 2), test_images.swapaxes(1, 2)
    return {
        "inputs": images[:, None],
        "targets": labels.astype(np.int64) - first_label,
        "test_inputs": test_images[:, None],
        "test_targets": test_labels.astype(np.int64) - first_label,
    }


def parse(data: bytes, name: str) -> NDArray[Any]:
    """Parse an idx file of bytes, which may be compressed: two zeros, 8, the number of dimensions, sizes, values.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels")
    array([7, 9], dtype=uint8)
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{name!r} is not an idx file of bytes: it starts with {data[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) - start != np.prod(shape, dtype=object):
        raise DataError(f"{name!r} should hold {shape} values after its first {start} bytes, but has {len(data)} bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
