"""Data: datasets by name or from the caller's own arrays, and their shares among clients."""

from nestling.data.arrays import from_arrays, from_hf
from nestling.data.augment import AUGMENT, crop_flip
from nestling.data.dataset import Dataset
from nestling.data.fetch import get
from nestling.data.partition import Partition, counts, partition
from nestling.data.sources import DATASETS, Source, load, names

__all__ = [
    "AUGMENT",
    "DATASETS",
    "Dataset",
    "Partition",
    "Source",
    "counts",
    "crop_flip",
    "from_arrays",
    "from_hf",
    "get",
    "load",
    "names",
    "partition",
]
