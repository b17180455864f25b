"""`Dataset`: samples and labels in memory, and their preprocessing; from arrays or Hugging Face's `datasets`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.data.augment import AUGMENT
from nestling.errors import DataError, first_line, nearest


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples for training and testing.

    Parameters
    ----------
    name
        Its name in reports.
    inputs, targets
        Training samples (N, *shape), uint8 or float32, and their classes (N,), int64.
    test_inputs, test_targets
        The same for testing; may hold no sample.
    classes
        The number of classes; targets are 0 … classes − 1.
    mean, std
        One number per channel (the first dimension of a sample), for :meth:`ready`; empty for no normalisation.
    augment
        The augmentation of training batches: a name in ``AUGMENT``.
    resize
        The side in pixels to which :meth:`ready` resizes images, (C, H, W); 0 to keep their size.
    users, test_users
        The user of each sample, (N,) int64, if known.

    Examples
    --------
    >>> images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> labels = torch.tensor([0, 1])
    >>> data = Dataset("two", images, labels, images, labels, classes=2, mean=(0.5,), std=(0.25,))
    >>> data.shape, data.ready(data.inputs).flatten()
    ((1, 1, 1), tensor([-2.,  2.]))
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: str = "none"
    resize: int = 0
    users: Tensor | None = None
    test_users: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int) or isinstance(self.classes, bool) or self.classes < 1:
            raise DataError(f"{self.name}: a dataset has a whole number of classes, at least 1, not {self.classes!r}")
        for field in ("inputs", "targets", "test_inputs", "test_targets"):
            value = getattr(self, field)
            if not isinstance(value, Tensor):
                raise DataError(
                    f"{self.name}: {field} must be a tensor, not a {type(value).__name__}: nestling.data.from_arrays "
                    "converts other types"
                )
        if not len(self.inputs):
            raise DataError(f"{self.name}: there are no training samples")
        self._check_part("training", self.inputs, self.targets, self.users)
        self._check_part("test", self.test_inputs, self.test_targets, self.test_users)
        if self.test_inputs.shape[1:] != self.inputs.shape[1:] or self.test_inputs.dtype != self.inputs.dtype:
            raise DataError(
                f"{self.name}: test samples are {_describe(self.test_inputs)}, "
                f"training samples {_describe(self.inputs)}"
            )
        if self.augment not in AUGMENT:
            raise DataError(f"there is no augmentation {self.augment!r}{nearest(self.augment, AUGMENT)}")
        if self.resize < 0:
            raise DataError(f"{self.name}: images cannot be resized to {self.resize} pixels; use 0 to keep their size")
        if self.resize and self.inputs.dim() != 4:
            raise DataError(
                f"{self.name}: only images (channels, height, width) can be resized, not samples of shape {self.shape}"
            )
        self._check_statistics()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as model input."""
        stored = tuple(self.inputs.shape[1:])
        return (*stored[:-2], self.resize, self.resize) if self.resize and len(stored) == 3 else stored

    def example(self, batch: int) -> Tensor:
        """Return a model input of zeros, (batch, *shape)."""
        return torch.zeros(batch, *self.shape)

    def ready(self, inputs: Tensor) -> Tensor:
        """Return a stored batch as model input: (B, *shape) in float32, normalised, on the same device.

        Integers are pixels from 0 to 255 and are scaled to 0 … 1 first. Images are resized last, by the antialiased
        bilinear interpolation of image libraries; only the batch is ever held in the new size.
        """
        if inputs.shape[1:] != self.inputs.shape[1:]:
            stored = tuple(self.inputs.shape[1:])
            raise DataError(f"{self.name} has samples of shape {stored}, not {tuple(inputs.shape[1:])}")
        if inputs.dtype == torch.uint8:
            values = inputs.to(torch.float32).div_(255)
        elif inputs.is_floating_point():
            values = inputs.to(torch.float32, copy=bool(self.mean))
        else:
            raise DataError(f"a batch of {self.name} must be uint8 or floating point, not {inputs.dtype}")
        if self.mean:
            per_channel = (-1, *[1] * (len(self.shape) - 1))
            values.sub_(torch.tensor(self.mean, device=values.device).view(per_channel))
            values.div_(torch.tensor(self.std, device=values.device).view(per_channel))
        if self.resize and self.shape[-2:] != values.shape[-2:]:
            values = F.interpolate(values, size=(self.resize, self.resize), mode="bilinear", antialias=True)
        return values

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor, users: Tensor | None) -> None:
        if inputs.dtype not in (torch.uint8, torch.float32) or inputs.dim() < 2:
            raise DataError(
                f"{self.name}: {part} samples must be uint8 or float32 of shape (N, …), "
                f"not {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        for column, values in (("labels", targets), ("users", users)):
            if values is not None and (values.dtype != torch.int64 or values.shape != inputs.shape[:1]):
                raise DataError(
                    f"{self.name}: {part} {column} must be int64 of shape ({len(inputs)},), one for every sample, "
                    f"not {values.dtype} of shape {tuple(values.shape)}"
                )
        if len(targets):
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= self.classes:
                bad = low if low < 0 else high
                raise DataError(f"{self.name}: {part} label {bad} is not one of the classes 0 to {self.classes - 1}")
        # A sum is finite only if every summand is, and it needs no memory.
        if inputs.is_floating_point() and not bool(inputs.sum(dtype=torch.float64).isfinite()):
            raise DataError(f"{self.name}: {part} samples hold values that are not finite numbers")

    def _check_statistics(self) -> None:
        if not self.mean and not self.std:
            return
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise DataError(
                f"{self.name}: mean and std need one number for each of the {self.shape[0]} channels, "
                f"not {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, self.mean)) or not all(math.isfinite(value) and value > 0 for value in self.std):
            raise DataError(
                f"{self.name}: mean must be finite and std positive, not mean={self.mean} and std={self.std}"
            )


def _describe(inputs: Tensor) -> str:
    return f"{inputs.dtype} of shape {tuple(inputs.shape[1:])}"


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
    """Return a dataset made from NumPy arrays, tensors, or lists.

    Parameters
    ----------
    inputs
        Samples (N, …): uint8 for pixels, or floating point, converted to float32. Images are (N, C, H, W).
    targets
        Classes (N,), integers from 0.
    test
        Test samples and their classes; by default the test set is empty.
    classes
        The number of classes; by default, one more than the largest in `targets` and `test`.
    users, test_users
        The user of each sample, integers (N,).
    mean, std, augment, name
        As in :class:`~nestling.data.Dataset`.

    Examples
    --------
    >>> data = from_arrays(np.zeros((4, 3)), [0, 1, 1, 2])
    >>> data.inputs.dtype, data.classes, len(data.test_inputs)
    (torch.float32, 3, 0)
    """
    samples, labels = _samples(inputs, "samples"), _integers(targets, "labels")
    if test is None:
        test_samples, test_labels = samples[:0], labels[:0]
    else:
        test_samples, test_labels = _samples(test[0], "test samples"), _integers(test[1], "test labels")
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
        users=None if users is None else _integers(users, "users"),
        test_users=None if test_users is None else _integers(test_users, "test users"),
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
    """Return a dataset made from a Hugging Face ``DatasetDict``, or from a single ``Dataset`` without a test set.

    Images, which are (H, W) or (H, W, C) bytes, become (C, H, W); other numeric columns stay as they are.

    Parameters
    ----------
    data
        The result of ``datasets.load_dataset``.
    input, target, user
        The columns of samples, classes and, if known, users (numbers or text).
    train, test
        The splits for training and testing; the second may be missing.
    mean, std, augment, name
        As in :class:`~nestling.data.Dataset`.
    """
    all_splits = data if isinstance(data, Mapping) else {train: data}
    if train not in all_splits:
        raise DataError(f"the Hugging Face dataset has no split {train!r}{nearest(train, all_splits)}")
    splits = [all_splits[split] for split in (train, test) if split in all_splits]
    labels = [column(split, target) for split in splits]
    features = getattr(splits[0], "features", None) or {}
    users: list[Any] = [None, None]
    if user is not None:
        columns = [column(split, user) for split in splits]
        ids = np.unique(np.concatenate(columns), return_inverse=True)[1]  # text becomes numbers, alike in both splits
        users[: len(columns)] = np.split(ids, [len(columns[0])])[: len(columns)]
    samples = [channels_first(column(split, input)) for split in splits]
    return from_arrays(
        samples[0],
        labels[0],
        (samples[1], labels[1]) if len(splits) == 2 else None,
        classes=getattr(features.get(target), "num_classes", None),
        users=users[0],
        test_users=users[1],
        mean=mean,
        std=std,
        augment=augment,
        name=name,
    )


def column(split: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column of a Hugging Face dataset as an array."""
    if name not in split.column_names:
        raise DataError(f"the Hugging Face dataset has no column {name!r}{nearest(name, split.column_names)}")
    values = split.with_format("numpy")[name][:]  # [:] because newer versions return a lazy column
    try:
        return np.asarray(values)
    except ValueError as problem:
        raise DataError(f"the samples in column {name!r} differ in shape: bring them to one size first") from problem


def channels_first(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return images (N, H, W) or (N, H, W, C) as (N, C, H, W), and other arrays unchanged."""
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[:, None]
    if values.dtype == np.uint8 and values.ndim == 4 and values.shape[-1] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(values, -1, 1))
    return values


def _tensor(values: Any, column: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as problem:
        raise DataError(f"the {column} are not numbers in a regular array: {first_line(problem)}") from problem


def _samples(values: Any, column: str) -> Tensor:
    tensor = _tensor(values, column)
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    if tensor.dtype != torch.uint8:
        raise DataError(f"the {column} are {tensor.dtype}: make them uint8 (pixels, 0 to 255) or floating point")
    return tensor


def _integers(values: Any, column: str) -> Tensor:
    tensor = _tensor(values, column)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise DataError(f"the {column} are {tensor.dtype}: make them whole numbers")
    return tensor.to(torch.int64)
