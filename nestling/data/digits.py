"""The digits that come with scikit-learn: 1,797 images of 8×8 pixels, for trying things out in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nestling.data.decoded import Arrays
from nestling.data.extras import need
from nestling.seeds import numpy_stream


def read(_paths: tuple[Path, ...] = ()) -> Arrays:
    """Read the digits, 0 … 1, and set a fifth of every class apart for testing: always the same samples."""
    digits = need("sklearn.datasets", "data", "the digits").load_digits()
    inputs = (digits.images / 16).astype(np.float32)[:, None]
    targets = digits.target.astype(np.int64)
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
