"""HeteroFL's Scaler: while training, hidden layers of a model of rate r give their outputs divided by r.

A layer with fewer inputs gives smaller sums, in proportion to its rate; dividing makes activations of all levels alike,
and is left out when testing. The paper puts it between each layer and its norm. Dividing where a layer gives its
output is the same: between two norms a residual stream is only added up. Layers here are linear, convolutional and
embedding ones; recurrent layers and `nn.MultiheadAttention`, which the paper does not use, are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.dims import leaves
from nestling.methods.context import Setup
from nestling.methods.part import Part


@dataclass(frozen=True)
class Scaler(Part):
    """Divide the outputs of hidden layers by the ratio while training (HeteroFL, §3)."""

    @property
    def per_ratio(self) -> bool:
        """Models of one shape divide by different ratios."""
        return True

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Make hidden layers divide their outputs."""
        scale(model, setup.axes, ratio)


def scaled_layers(model: nn.Module, axes: AxisMap) -> list[nn.Module]:
    """The layers of a model, or of a sub-model, whose outputs run along an axis that can be cut."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.modules.conv._ConvNd) and module.transposed):
            place = 1
        elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            place = 0
        else:
            continue
        dims = axes.dims.get(f"{name}.weight" if name else "weight")
        if dims is not None and any(leaf.name in axes.axes for leaf in leaves(dims[place])):
            found.append(module)
    return found


def scale(model: nn.Module, axes: AxisMap, rate: float) -> None:
    """Make the hidden layers of `model` divide their outputs by `rate` in training mode, for good.

    Parameters
    ----------
    model
        A sub-model.
    axes
        The axes of the whole model.
    rate
        The width of the sub-model's level.
    """

    def divide(module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        return output / rate if module.training else None

    if rate != 1:
        for layer in scaled_layers(model, axes):
            layer.register_forward_hook(divide)
