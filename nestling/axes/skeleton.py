"""Copy a module and replace its parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from nestling.errors import BuildError, first_line


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer with its name; tied ones under each of their names.

    >>> [name for name, _ in tensors(nn.BatchNorm1d(3))]
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def copy_with(model: nn.Module, swap: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Return a deep copy of `model` whose tensors are ``swap(name, old)``; the old ones are never copied.

    Parameters stay parameters, and tensors tied in `model` are tied in the copy.

    >>> import torch
    >>> copy_with(nn.Linear(4, 2), lambda name, old: old[:1]).weight.shape
    torch.Size([1, 4])
    """
    memo: dict[int, Any] = {}
    for name, old in tensors(model):
        if id(old) not in memo:
            new = swap(name, old)
            memo[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    try:
        twin = copy.deepcopy(model, memo)
    except Exception as problem:
        raise BuildError(
            f"{type(model).__name__} cannot be copied ({first_line(problem)}): "
            "keep only parameters, buffers and plain values on its modules"
        ) from problem
    for module in twin.modules():
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()  # it also keeps its weights in a list
    return twin
