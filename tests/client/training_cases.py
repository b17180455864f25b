"""What the tests of local training share: small nets in double precision, and samples for them."""

import functools

import torch
from torch import nn

import nestling
from nestling.nets import build

# Narrow and on small inputs; dropout is off where two runs are compared.
OPTIONS = {
    "mlp": {"widths": (9, 7), "size": 6},
    "cnn": {"widths": (6, 8, 8, 10)},
    "cnn1d": {"widths": (6, 8, 8, 10)},
    "vgg16": {"widths": ((4, 5), (6, 6))},
    "preresnet18": {"widths": (4, 6, 6, 8)},
    "lstm": {"embedding": 5, "widths": (6, 5), "vocabulary": 12},
    "vit-tiny": {"width": 12, "head_width": 4, "hidden": 10, "depth": 2, "size": 16},
    "transformer-mlm": {
        "width": 8,
        "head_width": 3,
        "hidden": 12,
        "vocabulary": 20,
        "depth": 2,
        "positions": 6,
        "dropout": 0.0,
    },
}
SHAPES = {
    "mlp": (1, 6, 6),
    "cnn": (1, 16, 16),
    "cnn1d": (9, 32),
    "vgg16": (3, 8, 8),
    "preresnet18": (3, 16, 16),
    "vit-tiny": (3, 16, 16),
}
WORDS = {"lstm": 12, "transformer-mlm": 20}


def inputs_of(name, count=5, seed=0):
    random = torch.Generator().manual_seed(seed)
    if name in WORDS:
        return torch.randint(WORDS[name], (count, 6), generator=random)
    return torch.randn(count, *SHAPES[name], generator=random, dtype=torch.float64)


@functools.cache
def net_of(name, **options):
    """A net that no test may change, and its axes."""
    torch.manual_seed(0)
    net = build(name, **OPTIONS[name] | options).double()
    return net, nestling.trace(net, inputs_of(name))


def perceptron(classes=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, classes)).double()


def data(count, classes=4, seed=0):
    """Random samples, and the function that gives those of some indices."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=random, dtype=torch.float64)
    targets = torch.randint(classes, (count,), generator=random)
    return inputs, targets, lambda chosen: (inputs[chosen], targets[chosen])
