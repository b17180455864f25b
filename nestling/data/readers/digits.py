"""The digits of scikit-learn: 1,797 images of 8×8 pixels, for experiments that take seconds."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nestling.data.cache import Arrays
from nestling.errors import DataError
from nestling.imported import need
from nestling.seeds import numpy_stream


def read(_paths: tuple[Path, ...] = ()) -> Arrays:
    """Return the digits, scaled to 0 … 1; a fixed fifth of every class is the test set."""
    images, targets = _read_file() or _load_digits()
    inputs = (images / 16).astype(np.float32)[:, None]
    targets = targets.astype(np.int64)
    random = numpy_stream(0, "digits", "split")
    test = np.zeros(len(targets), dtype=bool)
    for label in range(10):
        members = random.permutation(np.flatnonzero(targets == label))
        test[members[: round(len(members) / 5)]] = True
    return {
        "inputs": inputs[~test],
        "targets": targets[~test],
        "test_inputs": inputs[test],
        "test_targets": targets[test],
    }


def _read_file() -> tuple[np.ndarray, np.ndarray] | None:
    """Read scikit-learn's data file; return None if it is not in its usual place.

    Importing scikit-learn takes two seconds, in every worker process.
    """
    package = find_spec("sklearn")
    for folder in package.submodule_search_locations or () if package is not None else ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path) as file:
                rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    return None


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    digits = need("sklearn.datasets", "data", "the digits need", DataError).load_digits()
    return digits.images, digits.target
