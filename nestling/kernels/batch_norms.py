"""The batch norms of a model, and those of them that are frozen."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yield the batch norms of a model, with their names, except frozen ones."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None and not has_frozen_weights(module):
            yield name, module


def has_frozen_weights(module: nn.Module) -> bool:
    """Return whether a module is a batch norm that has weights, all of them frozen.

    >>> has_frozen_weights(nn.BatchNorm1d(2)), has_frozen_weights(nn.BatchNorm1d(2).requires_grad_(False))
    (False, True)
    """
    if not isinstance(module, _BatchNorm):
        return False
    weights = list(module.parameters(recurse=False))
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def keep_frozen(model: nn.Module) -> None:
    """Make the frozen norms of a model normalise by their running statistics in training too.

    >>> import torch
    >>> model = nn.Sequential(nn.BatchNorm1d(1).requires_grad_(False))
    >>> keep_frozen(model)
    >>> model.train()(torch.tensor([[1.0], [3.0]])).round(), model[0].running_mean
    (tensor([[1.],
            [3.]]), tensor([0.]))
    """
    for module in model.modules():
        if has_frozen_weights(module) and _as_in_tests not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_as_in_tests)


def _as_in_tests(module: nn.Module, _: object) -> None:
    module.training = False
