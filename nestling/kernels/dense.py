"""Tensors in the order of their memory, for what treats every number alike.

Weights of grouped layers lie turned, kernels of images channels last: most of PyTorch goes through such tensors as fast
as through any other, but some of its kernels copy them first, and some trust that there are no gaps.
"""

from __future__ import annotations

from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor fill a stretch of memory, in whatever order.

    >>> import torch
    >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 3)[:, :2])
    (True, False)
    """
    if tensor.is_contiguous():
        return True
    length = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != length:
            return False
        length *= size
    return True


def as_rows(tensor: Tensor, rows: int = 1) -> Tensor:
    """View a dense tensor as its memory: (rows, numbers of each), where its first dimension can be cut into so many.

    >>> import torch
    >>> as_rows(torch.arange(6).view(2, 3).t())
    tensor([[0, 1, 2, 3, 4, 5]])
    """
    each = tensor.numel() // rows
    return tensor.as_strided((rows, each), (each, 1))
