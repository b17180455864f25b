"""Datasets from what the caller has: arrays, or Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestling.data.dataset import Dataset
from nestling.errors import DataError, first_line, nearest


def from_arrays(
    inputs: Any,
    targets: Any,
    test: tuple[Any, Any] | None = None,
    *,
    classes: int | None = None,
    users: Any = None,
    test_users: Any = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    augment: str = "none",
    name: str = "arrays",
) -> Dataset:
    """Make a dataset of NumPy arrays, tensors, or lists.

    Parameters
    ----------
    inputs
        Samples (N, …): uint8 for pixels, or floating point, which becomes float32. Images are (N, C, H, W).
    targets
        Classes (N,), whole numbers from 0.
    test
        Samples and classes to test on; without them, there is nothing to test on.
    classes
        How many classes there are; by default, one more than the largest in `targets` and `test`.
    users, test_users
        Whose each sample is, whole numbers (N,).
    mean, std, augment, name
        As in :class:`~nestling.data.Dataset`.

    Examples
    --------
    >>> data = from_arrays(np.zeros((4, 3)), [0, 1, 1, 2])
    >>> data.inputs.dtype, data.classes, len(data.test_inputs)
    (torch.float32, 3, 0)
    """
    samples, labels = _samples(inputs, "samples"), _whole(targets, "labels")
    if test is None:
        test_samples, test_labels = samples[:0], labels[:0]
    else:
        test_samples, test_labels = _samples(test[0], "test samples"), _whole(test[1], "test labels")
    if classes is None:
        classes = 1 + max((int(part.max()) for part in (labels, test_labels) if len(part)), default=0)
    return Dataset(
        name=name,
        inputs=samples,
        targets=labels,
        test_inputs=test_samples,
        test_targets=test_labels,
        classes=classes,
        mean=tuple(mean),
        std=tuple(std),
        augment=augment,
        users=None if users is None else _whole(users, "users"),
        test_users=None if test_users is None else _whole(test_users, "test users"),
    )


def from_hf(
    data: Any,
    input: str = "image",
    target: str = "label",
    user: str | None = None,
    *,
    train: str = "train",
    test: str = "test",
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    augment: str = "none",
    name: str = "hugging-face",
) -> Dataset:
    """Make a dataset of a Hugging Face ``DatasetDict``, or of a single ``Dataset`` without anything to test on.

    Images, which come as (H, W) or (H, W, C) bytes, become (C, H, W); other columns of numbers stay as they are.

    Parameters
    ----------
    data
        What ``datasets.load_dataset`` returns.
    input, target, user
        The columns of samples, classes and, where they are known, users (numbers or text).
    train, test
        The splits to train and test on; the second may be missing.
    mean, std, augment, name
        As in :class:`~nestling.data.Dataset`.
    """
    parts = data if isinstance(data, Mapping) else {train: data}
    if train not in parts:
        raise DataError(f"the Hugging Face dataset has no split {train!r}{nearest(train, parts)}")
    splits = [parts[split] for split in (train, test) if split in parts]
    labels = [_column(split, target) for split in splits]
    feature = getattr(splits[0], "features", None) or {}
    people: list[Any] = [None, None]
    if user is not None:
        columns = [_column(split, user) for split in splits]
        ids = np.unique(np.concatenate(columns), return_inverse=True)[1]  # text becomes numbers, alike in both splits
        people[: len(columns)] = np.split(ids, [len(columns[0])])[: len(columns)]
    samples = [_images_first(_column(split, input)) for split in splits]
    return from_arrays(
        samples[0],
        labels[0],
        (samples[1], labels[1]) if len(splits) == 2 else None,
        classes=getattr(feature.get(target), "num_classes", None),
        users=people[0],
        test_users=people[1],
        mean=mean,
        std=std,
        augment=augment,
        name=name,
    )


def _column(split: Any, column: str) -> np.ndarray[Any, Any]:
    if column not in split.column_names:
        raise DataError(f"the Hugging Face dataset has no column {column!r}{nearest(column, split.column_names)}")
    values = split.with_format("numpy")[column][:]  # [:] because newer versions return a column that is read lazily
    try:
        return np.asarray(values)
    except ValueError as problem:
        raise DataError(f"the samples in column {column!r} differ in shape: bring them to one size first") from problem


def _images_first(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[:, None]
    if values.dtype == np.uint8 and values.ndim == 4 and values.shape[-1] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(values, -1, 1))
    return values


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as problem:
        raise DataError(f"the {what} are not numbers in a regular array: {first_line(problem)}") from problem


def _samples(values: Any, what: str) -> Tensor:
    tensor = _tensor(values, what)
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    if tensor.dtype != torch.uint8:
        raise DataError(f"the {what} are {tensor.dtype}: make them uint8 (pixels, 0 to 255) or floating point")
    return tensor


def _whole(values: Any, what: str) -> Tensor:
    tensor = _tensor(values, what)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise DataError(f"the {what} are {tensor.dtype}: make them whole numbers")
    return tensor.to(torch.int64)
