"""CINIC-10: PNG files in folders train, valid and test, one folder per class."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.archive import TAR_SUFFIXES, contents
from nestling.data.cache import Arrays
from nestling.errors import DataError
from nestling.imported import need

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LAYOUTS = (
    *(tuple(f"{folder}/{part}" for part in ("train", "valid", "test")) for folder in ("CINIC-10", "cinic10")),
    *(("CINIC-10" + suffix,) for suffix in TAR_SUFFIXES),
)


def read(paths: tuple[Path, ...], training: tuple[str, ...] = ("train",)) -> Arrays:
    """Read the parts `training` and "test"; images are (N, 3, 32, 32), uint8, in the order of their names."""
    image = need("PIL.Image", "data", "the images of CINIC-10 need", DataError)
    images: dict[bool, list[tuple[str, int, NDArray[Any]]]] = {False: [], True: []}

    def wanted(name: str) -> bool:
        part, label, _ = _last_three(name)
        return name.endswith(".png") and label in CLASSES and (part == "test" or part in training)

    for path in paths:
        for name, data in contents(path, wanted):
            part, label, file = _last_three(name)
            pixels = np.asarray(image.open(io.BytesIO(data)).convert("RGB"))
            if pixels.shape != (32, 32, 3):
                raise DataError(f"{name!r} in {str(path)!r} has {pixels.shape[1]}×{pixels.shape[0]} pixels, not 32×32")
            images[part == "test"].append((f"{part}/{label}/{file}", CLASSES.index(label), pixels.transpose(2, 0, 1)))
    arrays = {}
    for is_test, prefix in ((False, ""), (True, "test_")):
        samples = sorted(images[is_test], key=lambda sample: sample[0])  # the order in archives varies
        if not samples:
            parts = "test" if is_test else " or ".join(training)
            raise DataError(f"{str(paths[0])!r} holds no PNG files in {parts}/CLASS/")
        arrays[f"{prefix}inputs"] = np.stack([pixels for _, _, pixels in samples])
        arrays[f"{prefix}targets"] = np.array([label for _, label, _ in samples], dtype=np.int64)
    return arrays


def _last_three(name: str) -> list[str]:
    """Return part, class and file name of a PNG file.

    >>> _last_three("CINIC-10/train/cat/1.png")
    ['train', 'cat', '1.png']
    """
    return ["", "", *name.split("/")][-3:]
