"""Views of tensors in the order of their memory, for operations that treat all values in the same way.

The weights of grouped layers are transposed in memory, and those of convolutions are channels last. Some of PyTorch's
kernels copy such tensors first, and some assume that they have no gaps.
"""

from __future__ import annotations

from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Return whether the values of a tensor fill a block of memory without gaps, in any order.

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
    """Return a view of a dense tensor in the order of its memory, (rows, values of each).

    >>> import torch
    >>> as_rows(torch.arange(6).view(2, 3).t())
    tensor([[0, 1, 2, 3, 4, 5]])
    """
    each = tensor.numel() // rows
    return tensor.as_strided((rows, each), (each, 1))
