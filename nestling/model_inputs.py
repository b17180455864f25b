"""Model inputs: a tensor, a tuple of tensors for several arguments, or a dictionary of tensors by argument name.

The first dimension of every tensor counts samples. Functions here do with all tensors what PyTorch does with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Inputs = Any  # Tensor, tuple[Tensor, ...] or dict[str, Tensor]


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments with which a model is called.

    >>> arguments(torch.zeros(2)), arguments({"ids": 1})
    (((tensor([0., 0.]),), {}), ((), {'ids': 1}))
    """
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def forward(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Return what a model answers to inputs; of an answer that has ``logits`` (Hugging Face), only these."""
    if isinstance(inputs, Tensor):
        return logits_of(model(inputs))
    args, kwargs = arguments(inputs)
    return logits_of(model(*args, **kwargs))


def logits_of(output: Any) -> Any:
    """Return the ``logits`` of a model's output, or the output itself if it has none."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """Return all tensors of inputs, in order.

    >>> len(tensors_of((torch.zeros(1), torch.zeros(1))))
    2
    """
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


def count(inputs: Inputs) -> int:
    """Return the number of samples.

    >>> count({"ids": torch.zeros(3, 5)})
    3
    """
    return len(tensors_of(inputs)[0])


def mapped(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Return inputs of the same form, with a function applied to every tensor.

    >>> mapped(len, (torch.zeros(3), torch.zeros(2)))
    (3, 2)
    """
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(function(tensor) for tensor in inputs)


def chosen(inputs: Inputs, indices: Any) -> Inputs:
    """Return some samples: those with these indices, or those of a slice.

    >>> chosen({"x": torch.arange(4)}, torch.tensor([2, 0]))
    {'x': tensor([2, 0])}
    """
    return mapped(lambda tensor: tensor[indices], inputs)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Return the samples of several inputs of one form, one after another.

    >>> joined([(torch.zeros(1),), (torch.ones(1),)])
    (tensor([0., 1.]),)
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        return {name: torch.cat([part[name] for part in parts]) for name in first}
    return tuple(torch.cat(list(tensors)) for tensors in zip(*parts, strict=True))


def shapes(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of one sample, in order.

    >>> shapes((torch.zeros(2, 3), torch.zeros(2)))
    ((3,), ())
    """
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors_of(inputs))


def split(inputs: Inputs, size: int) -> list[Inputs]:
    """Return the samples in parts of `size`; the last may be smaller.

    >>> [count(part) for part in split({"x": torch.zeros(5)}, 2)]
    [2, 2, 1]
    """
    if isinstance(inputs, Tensor):
        return list(inputs.split(size))
    return [chosen(inputs, slice(start, start + size)) for start in range(0, count(inputs), size)]


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Return inputs on a device."""
    return mapped(lambda tensor: tensor.to(device), inputs)
