"""Street View House Numbers, cropped digits, from MATLAB files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.cache import Arrays
from nestling.errors import DataError
from nestling.imported import need

FILES = ("train_32x32.mat", "test_32x32.mat")


def read(paths: tuple[Path, ...]) -> Arrays:
    """Read both files; images are (N, 3, 32, 32), uint8, and label 10 of the files, the digit 0, becomes 0."""
    (inputs, targets), (test_inputs, test_targets) = (_read_part(path) for path in paths)
    return {"inputs": inputs, "targets": targets, "test_inputs": test_inputs, "test_targets": test_targets}


def _read_part(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    matrices = need("scipy.io", "data", "the house numbers need", DataError).loadmat(path)
    if "X" not in matrices or "y" not in matrices:
        raise DataError(f"{str(path)!r} does not hold the matrices X and y")
    images = np.asarray(matrices["X"])
    if images.dtype != np.uint8 or images.shape[:3] != (32, 32, 3):
        raise DataError(
            f"{str(path)!r} holds images of type {images.dtype} and shape {images.shape}, not (32, 32, 3, N)"
        )
    return images.transpose(3, 2, 0, 1), matrices["y"].reshape(-1).astype(np.int64) % 10
