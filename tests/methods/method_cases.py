"""What the tests of methods share: small nets with their axes."""

import functools
import json

import torch
from hypothesis import settings
from torch import nn

import nestling
from nestling import AxisMap
from nestling.nets import build, example

LAWS = settings(deadline=None, derandomize=True, max_examples=40, database=None)

OPTIONS = {
    "mlp": {"widths": (6, 5), "size": 8},
    "cnn": {"widths": (4, 6, 6, 8)},
    "lstm": {"embedding": 3, "widths": (6, 5), "vocabulary": 12},
    "preresnet18": {"widths": (4, 8, 8, 16)},
    "resnet18": {"widths": (4, 8, 8, 16)},
    "vgg16": {"widths": ((4, 4), (4, 6))},
    "vit-tiny": {"width": 12, "head_width": 4, "hidden": 10, "depth": 2},
    "transformer-mlm": {"width": 8, "head_width": 3, "hidden": 12, "vocabulary": 20, "depth": 2, "positions": 6},
}
NETS = list(OPTIONS)


@functools.cache
def net_of(name):
    """A net that no test may change, and its axes."""
    torch.manual_seed(0)
    net = build(name, **OPTIONS[name])
    return net, nestling.trace(net, *example(name, **OPTIONS[name]))


def axes_of(*sizes):
    """Axes of these sizes, one for each of as many vectors."""
    names = [f"axis{k}" for k in range(len(sizes))]
    axes = [{"name": name, "size": size} for name, size in zip(names, sizes, strict=True)]
    return AxisMap.from_json(
        json.dumps({"axes": axes, "dims": {f"{name}.bias": name for name in names}, "blocks": {}, "tied": {}})
    )


class Tied(nn.Module):
    """A language model whose last layer reads words with the weights that wrote them."""

    def __init__(self):
        super().__init__()
        self.token, self.middle, self.head = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x):
        return self.head(self.middle(self.token(x)).relu().mean(1))
