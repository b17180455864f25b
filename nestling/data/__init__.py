"""Datasets by name or from the caller's own arrays, and their partition among clients."""

from nestling.data.augment import AUGMENT, crop_flip
from nestling.data.catalog import DATASETS, TEXTS, Source, load, load_text, names
from nestling.data.dataset import Dataset, from_arrays, from_hf
from nestling.data.fetch import get
from nestling.data.lazy import Lazy
from nestling.data.partition import Partition, counts, partition
from nestling.data.text.corpus import Text, TextShares, share
from nestling.data.text.vocabulary import Vocabulary

__all__ = [
    "AUGMENT",
    "DATASETS",
    "TEXTS",
    "Dataset",
    "Lazy",
    "Partition",
    "Source",
    "Text",
    "TextShares",
    "Vocabulary",
    "counts",
    "crop_flip",
    "from_arrays",
    "from_hf",
    "get",
    "load",
    "load_text",
    "names",
    "partition",
    "share",
]
