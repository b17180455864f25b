"""A dataset in memory: samples, labels, and how samples become what a model reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.data.augment import AUGMENT
from nestling.errors import DataError, nearest


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples for training and testing.

    Parameters
    ----------
    name
        What it is called in reports.
    inputs, targets
        Training samples (N, *shape), uint8 or float32, and their classes (N,), int64.
    test_inputs, test_targets
        The same for testing; may hold no sample.
    classes
        How many classes there are; targets are 0 … classes − 1.
    mean, std
        One number per channel (the first dimension of a sample), for :meth:`ready`; empty to leave values as they are.
    augment
        What training does to a batch by default: a name in ``AUGMENT``.
    resize
        The side in pixels to which :meth:`ready` brings images, (C, H, W), whatever their shape; 0 to leave them.
    users, test_users
        Who made each sample, (N,) int64, where that is known.

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
        for what in ("inputs", "targets", "test_inputs", "test_targets"):
            given = getattr(self, what)
            if not isinstance(given, Tensor):
                raise DataError(
                    f"{self.name}: {what} must be a tensor, not a {type(given).__name__}: nestling.data.from_arrays "
                    "takes other kinds"
                )
        if not len(self.inputs):
            raise DataError(f"{self.name}: there are no training samples")
        self._check_part("training", self.inputs, self.targets, self.users)
        self._check_part("test", self.test_inputs, self.test_targets, self.test_users)
        if self.test_inputs.shape[1:] != self.inputs.shape[1:] or self.test_inputs.dtype != self.inputs.dtype:
            raise DataError(
                f"{self.name}: test samples are {_told(self.test_inputs)}, training samples {_told(self.inputs)}"
            )
        if self.augment not in AUGMENT:
            raise DataError(f"there is no augmentation {self.augment!r}{nearest(self.augment, AUGMENT)}")
        if self.resize < 0:
            raise DataError(f"{self.name}: images cannot be resized to {self.resize} pixels; 0 leaves them as they are")
        if self.resize and self.inputs.dim() != 4:
            raise DataError(
                f"{self.name}: only images (channels, height, width) can be resized, not samples of shape {self.shape}"
            )
        self._check_statistics()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as a model reads it."""
        stored = tuple(self.inputs.shape[1:])
        return (*stored[:-2], self.resize, self.resize) if self.resize and len(stored) == 3 else stored

    def example(self, batch: int) -> Tensor:
        """Return an input of a model that holds nothing: (batch, *shape)."""
        return torch.zeros(batch, *self.shape)

    def ready(self, inputs: Tensor) -> Tensor:
        """Turn a batch as it is stored into what a model reads: (B, *shape) in float32, normalised, on the same device.

        Whole numbers are pixels, 0 … 255, and become 0 … 1 first. Images are resized last, by antialiased bilinear
        interpolation as image libraries do it: where they grow, antialiasing changes nothing, and where they shrink,
        every pixel counts. Only the batch is ever held in that size.
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

    def _check_part(self, what: str, inputs: Tensor, targets: Tensor, users: Tensor | None) -> None:
        if inputs.dtype not in (torch.uint8, torch.float32) or inputs.dim() < 2:
            raise DataError(
                f"{self.name}: {what} samples must be uint8 or float32 of shape (N, …), "
                f"not {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        for words, values in (("labels", targets), ("users", users)):
            if values is not None and (values.dtype != torch.int64 or values.shape != inputs.shape[:1]):
                raise DataError(
                    f"{self.name}: {what} {words} must be int64 of shape ({len(inputs)},), one for every sample, "
                    f"not {values.dtype} of shape {tuple(values.shape)}"
                )
        if len(targets):
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= self.classes:
                bad = low if low < 0 else high
                raise DataError(f"{self.name}: {what} label {bad} is not one of the classes 0 to {self.classes - 1}")
        # A sum is finite only if every summand is, and takes no memory.
        if inputs.is_floating_point() and not bool(inputs.sum(dtype=torch.float64).isfinite()):
            raise DataError(f"{self.name}: {what} samples hold values that are not finite numbers")

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


def _told(inputs: Tensor) -> str:
    return f"{inputs.dtype} of shape {tuple(inputs.shape[1:])}"
