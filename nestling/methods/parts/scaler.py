"""HeteroFL's Scaler (§3.3, Eq. 4): in training, the hidden layers of a model of rate r divide their outputs by r.

A layer with fewer inputs has smaller sums, in proportion to its rate. Dividing gives activations of all levels the same
scale; in tests it is left out. The paper puts the Scaler between each layer and its norm. Scaling the layer's output is
equivalent, as a residual stream only adds outputs up before the next norm. Linear, convolutional and embedding layers
are scaled; recurrent layers and `nn.MultiheadAttention`, which the paper does not use, are not.
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
    """Divide the outputs of hidden layers by the ratio while training (HeteroFL, §3.3)."""

    @property
    def per_ratio(self) -> bool:
        """Return True: models of one shape may divide by different ratios."""
        return True

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Make hidden layers divide their outputs by the ratio."""
        scale(model, setup.axes, ratio)


def scaled_layers(model: nn.Module, axes: AxisMap) -> list[nn.Module]:
    """Return the layers of a model, or of a sub-model, whose outputs have an axis that can be cut."""
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.modules.conv._ConvNd) and module.transposed):
            output_dim = 1
        elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            output_dim = 0
        else:
            continue
        dims = axes.dims.get(f"{name}.weight" if name else "weight")
        if dims is not None and any(leaf.name in axes.axes for leaf in leaves(dims[output_dim])):
            layers.append(module)
    return layers


def scale(model: nn.Module, axes: AxisMap, rate: float) -> None:
    """Make the hidden layers of `model` divide their outputs by `rate` in training mode, permanently.

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
