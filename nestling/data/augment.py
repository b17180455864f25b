"""Augmentation of whole batches in a few tensor operations, without a loop over samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.errors import DataError


def none(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Return the batch unchanged."""
    return batch


def crop_flip(batch: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift every image by up to `pad` pixels in each direction and flip half of them (HeteroFL, NeFL: CIFAR).

    Each image is padded with `pad` **zeros** on every side, cropped to its own size at a uniformly random position, and
    flipped left to right with probability 1/2. The papers pad with black before they normalise, so this comes before
    ``Dataset.ready``.

    Images are (B, C, H, W) of any dtype.

    >>> images = torch.arange(18, dtype=torch.uint8).view(2, 1, 3, 3)
    >>> crop_flip(images, torch.Generator().manual_seed(0), pad=1).shape
    torch.Size([2, 1, 3, 3])
    """
    if batch.dim() != 4:
        raise DataError(f"crop-flip takes images (batch, channels, height, width), not shape {tuple(batch.shape)}")
    if pad < 0:
        raise DataError(f"crop-flip cannot pad by {pad}: use 0 or more pixels")
    count, channels, height, width = batch.shape
    if batch.numel() == 0:
        return batch
    # Draw on the generator's device, so that the numbers are the same on every device.
    shifts = torch.randint(2 * pad + 1, (2, count), generator=generator, device=generator.device)
    top, left = shifts.to(batch.device)
    mirrored = (torch.rand(count, generator=generator, device=generator.device) < 0.5).to(batch.device)

    padded = F.pad(batch, [pad] * 4).contiguous()
    line, plane = width + 2 * pad, (width + 2 * pad) * (height + 2 * pad)

    def indices(size: int) -> Tensor:
        return torch.arange(size, device=batch.device)

    # Every line of every crop is contiguous in memory: copying lines is several times faster than picking pixels.
    first = (indices(count) * channels * plane + top * line + left)[:, None, None]
    first = first + (indices(channels) * plane)[:, None] + indices(height) * line
    windows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    crops = windows.index_select(0, first.flatten()).view(batch.shape)
    return torch.where(mirrored.view(-1, 1, 1, 1), crops.flip(-1), crops)


AUGMENT: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"none": none, "crop-flip": crop_flip}
