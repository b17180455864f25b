"""The devices of models: the CPU, a CUDA GPU, Apple's GPU. Random numbers are always drawn on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestling.errors import ConfigError


def find_device(name: str) -> torch.device:
    """Return a device of this machine by name; raise an error if it cannot be used.

    >>> find_device("cpu")
    device(type='cpu')
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device={name} needs a GPU and a PyTorch built for CUDA, and here is none: use device=cpu"
            )
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"there is no device {name}: this machine has {torch.cuda.device_count()}, from cuda:0 on"
            )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device=mps needs an Apple GPU, and here is none: use device=cpu")
    return device


def has_kernels(tensors: Sequence[Tensor]) -> bool:
    """Return whether PyTorch has kernels for lists of tensors on the devices of these.

    >>> has_kernels([torch.ones(2)])
    True
    """
    return all(tensor.device.type in ("cpu", "cuda") for tensor in tensors)


def exact(tensor: Tensor) -> Tensor:
    """Return a new tensor in the widest floating-point type of its device: double precision, except on Apple's GPUs.

    >>> exact(torch.ones(2)).dtype
    torch.float64
    """
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64, copy=True)
