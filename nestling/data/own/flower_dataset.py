"""Own data as a ``FederatedDataset`` of flwr-datasets, known by what it has: its partitioners serve as they are."""

from __future__ import annotations

from typing import Any

from nestling.errors import DataError, first_line

TRAIN, TEST = "train", "test"


def matches(source: Any) -> bool:
    """Return whether a source divides its splits among clients."""
    return hasattr(source, "load_partition") and hasattr(source, "partitioners")


def clients_of(source: Any) -> list[Any]:
    """Return the Hugging Face datasets of all clients."""
    if TRAIN not in source.partitioners:
        raise DataError(
            f"the FederatedDataset has no partitioner of {TRAIN!r}: give one as partitioners={{'train': …}}"
        )
    count = source.partitioners[TRAIN].num_partitions
    return [source.load_partition(number, TRAIN) for number in range(count)]


def test_of(source: Any) -> Any:
    """Return the Hugging Face dataset that models are tested on."""
    try:
        return source.load_split(TEST)
    except (ValueError, KeyError) as problem:
        raise DataError(f"the FederatedDataset has no split {TEST!r} ({first_line(problem)}): give test=…") from None
