"""The digits that come with scikit-learn: 1,797 images of 8×8 pixels, for trying things out in seconds."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nestling.data.decoded import Arrays
from nestling.data.extras import need
from nestling.seeds import numpy_stream


def read(_paths: tuple[Path, ...] = ()) -> Arrays:
    """Read the digits, 0 … 1, and set a fifth of every class apart for testing: always the same samples."""
    images, targets = _stored() or _loaded()
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


def _stored() -> tuple[np.ndarray, np.ndarray] | None:
    """Read scikit-learn's file; None where it is not where it used to be.

    Importing scikit-learn takes two seconds, and every worker process would spend them.
    """
    package = find_spec("sklearn")
    for place in package.submodule_search_locations or () if package is not None else ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path) as file:
                rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    return None


def _loaded() -> tuple[np.ndarray, np.ndarray]:
    digits = need("sklearn.datasets", "data", "the digits").load_digits()
    return digits.images, digits.target
