"""Own data as `torch.utils.data.Dataset`: every sample is read once and kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from nestling.data.own import in_memory
from nestling.data.own.own_samples import OwnSamples
from nestling.errors import DataError, first_line
from nestling.events import report


def matches(source: Any) -> bool:
    """Return whether a source is a dataset of PyTorch's."""
    return isinstance(source, Dataset)


def samples_of(source: Any, what: str, label: str = "") -> OwnSamples:
    """Return the samples of a dataset; those are tuples, of which the last is the target, dictionaries, or tensors.

    >>> samples_of(TensorDataset(torch.zeros(4, 2), torch.arange(4)), "client 0").outputs
    tensor([0, 1, 2, 3])
    """
    if isinstance(source, IterableDataset):
        raise DataError(f"{what}: an IterableDataset has no samples by index: give a map-style Dataset")
    if isinstance(source, TensorDataset):
        tensors = source.tensors
        return in_memory.samples_of(tensors if len(tensors) > 1 else tensors[0], what, label)
    try:
        samples = [source[index] for index in range(len(source))]
    except Exception as problem:  # whatever the user's own code raises
        kind = type(problem).__name__
        raise DataError(f"{what}: the Dataset cannot be read: {kind}: {first_line(problem)}") from problem
    if not samples:
        raise DataError(f"{what}: the Dataset is empty")
    _report_random(source, samples[0], what)
    return in_memory.samples_of(_stacked(samples, what), what, label)


def _stacked(samples: Sequence[Any], what: str) -> Any:
    """Return samples with one more dimension in front, in the form of the first one."""
    first = samples[0]
    if isinstance(first, dict | tuple | list) and not in_memory.is_array(first):
        odd = next((index for index, sample in enumerate(samples) if _parts(sample) != _parts(first)), None)
        if odd is not None:
            raise DataError(f"{what}: sample {odd} has {_parts(samples[odd])}, but sample 0 has {_parts(first)}")
        if isinstance(first, dict):
            return {name: _stacked([sample[name] for sample in samples], what) for name in first}
        return tuple(_stacked(part, what) for part in zip(*samples, strict=True))
    try:
        tensors = [torch.as_tensor(sample) for sample in samples]
    except (TypeError, ValueError, RuntimeError):
        kind = type(first).__name__
        raise DataError(f"{what}: a sample holds a {kind}: let the Dataset return tensors, arrays or numbers") from None
    odd = next((index for index, tensor in enumerate(tensors) if tensor.shape != tensors[0].shape), None)
    if odd is not None:
        shape, other = tuple(tensors[odd].shape), tuple(tensors[0].shape)
        raise DataError(f"{what}: sample {odd} has shape {shape}, but sample 0 has {other}: bring them to one shape")
    return torch.stack(tensors)


def _parts(sample: Any) -> str:
    if isinstance(sample, dict):
        return f"the parts {', '.join(map(repr, sample))}"
    return f"{len(sample)} parts" if isinstance(sample, tuple | list) else "no parts"


def _report_random(source: Any, before: Any, what: str) -> None:
    """Report an event if a dataset returns another sample each time."""
    if not all(torch.equal(a, b) for a, b in zip(_leaves(before), _leaves(source[0]), strict=True)):
        report(
            "random samples read once",
            f"{what}: the Dataset returns other values each time (a random transform?): every sample is read once, "
            "so this is drawn once and not in every epoch",
        )


def _leaves(sample: Any) -> list[Tensor]:
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, tuple | list):
        return [tensor for part in sample for tensor in _leaves(part)]
    try:
        return [torch.as_tensor(sample)]
    except (TypeError, ValueError, RuntimeError):
        return []
