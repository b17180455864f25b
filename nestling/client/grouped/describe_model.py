"""A short description of a model, for finding measurements of similar models."""

from __future__ import annotations

from statistics import geometric_mean

from torch import nn


def describe_model(model: nn.Module) -> tuple[str, float, int]:
    """Return a model's kind, the geometric mean of its hidden layers' widths, and the number of its layers.

    >>> describe_model(nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    ('perceptron', 8.0, 3)
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    widths = [float(layer.weight.shape[0]) for layer in layers[:-1]] or [1.0]
    if any(isinstance(module, nn.LayerNorm | nn.Embedding) for module in model.modules()):
        kind = "transformer"
    else:
        kind = "convolution" if any(not isinstance(layer, nn.Linear) for layer in layers) else "perceptron"
    return kind, round(geometric_mean(widths), 1), len(layers)
