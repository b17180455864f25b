"""Random programs over a few layers: models that nobody would write, and so nobody has thought of.

Every operation gives zero for zero units and none runs over units in a way that a missing unit changes, so that the
*zeroed* reference of `axes_prove` is exact. Some sizes are written into the operations, as people do.
"""

import random

import torch
from torch import nn


def grouped(x, shape):
    """Every unit times the sum of its group: a unit put into another group is another number."""
    groups = x.unflatten(1, shape)
    return (groups * groups.sum(-1, keepdim=True)).flatten(1)


def shuffled(x, shape):
    return x.unflatten(1, shape).transpose(1, 2).flatten(1)


def halves(x):
    middle = x.shape[1] // 2
    return torch.cat([x[:, :middle].relu(), x[:, middle:].tanh()], 1)


def thirds(x):
    one, two, three = x.chunk(3, 1)
    return one * two + three


def chunked(x, join):
    return join(*x.chunk(2, 1))


def even(width):
    return width % 2 == 0 and width > 2


def divisors(width):
    return [n for n in (2, 3, 4, 6) if width % n == 0 and width > n]


# name: (which widths it takes, what width it gives, what it does)
PLAIN = {
    "relu": (lambda _: True, lambda w: w, lambda x: x.relu()),
    "halves": (even, lambda w: w, halves),
    "upper half": (even, lambda w: w // 2, lambda x: x[:, x.shape[1] // 2 :]),
    "half gates half": (even, lambda w: w, lambda x: chunked(x, lambda a, b: torch.cat([a, a * b], 1))),
    "swap": (even, lambda w: w, lambda x: chunked(x, lambda a, b: torch.cat([b, a], 1))),
    "fold": (even, lambda w: w // 2, lambda x: chunked(x, lambda a, b: a.relu() + b)),
    "thirds": (lambda w: w % 3 == 0 and w > 3, lambda w: w // 3, thirds),
    "twice": (lambda w: w < 20, lambda w: 2 * w, lambda x: torch.stack([x, x.relu()], 2).flatten(1)),
    "pairs": (lambda w: w <= 6, lambda w: w * w, lambda x: (x[:, :, None] * x[:, None]).flatten(1)),
}
# the same with a number in the code: of groups, or of units in a group
NUMBERED = {
    "groups": lambda x, n: grouped(x, (n, -1)),
    "groups of": lambda x, n: grouped(x, (-1, n)),
    "shuffle": lambda x, n: shuffled(x, (n, -1)),
    "shuffle of": lambda x, n: shuffled(x, (-1, n)),
}
JOINS = {
    "cat": lambda a, b: torch.cat([a, b], 1),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
}
LAYERS = ("linear", "conv", "norm")


def width_after(layer):
    sizes = {nn.Linear: "out_features", nn.Conv1d: "out_channels", nn.BatchNorm1d: "num_features"}
    return getattr(layer, sizes[type(layer)])


class Program(nn.Module):
    """A model from vectors of 4 to vectors of 3, made of random steps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleList([nn.Linear(4, 8)])
        self.steps = [("linear", 0, 0)]  # (what, which value, with what)
        widths = [4, 8]
        for _ in range(draw.randint(2, 7)):
            self._grow(draw, widths)
        self.heads = nn.ModuleList(nn.Linear(width, 3) for width in widths[max(1, len(widths) - 2) :])

    def _grow(self, draw, widths):
        given = draw.randrange(1, len(widths))
        width = widths[given]
        what = draw.choice([*PLAIN, *NUMBERED, *JOINS, *LAYERS])
        if what in PLAIN and PLAIN[what][0](width):
            step, after = (what, given, 0), PLAIN[what][1](width)
        elif what in NUMBERED and divisors(width):
            step, after = (what, given, draw.choice(divisors(width))), width
        elif what == "cat" and width + widths[other := draw.randrange(1, len(widths))] <= 40:
            step, after = (what, given, other), width + widths[other]
        elif what in ("add", "mul"):
            step, after = (what, given, draw.choice([k for k, w in enumerate(widths) if k and w == width])), width
        elif what in LAYERS and (layer := self._layer(draw, what, width)) is not None:
            self.layers.append(layer)
            step, after = (
                (what, given, len(self.layers) - 1),
                width_after(layer),
            )
        else:
            return
        self.steps.append(step)
        widths.append(after)

    def _layer(self, draw, what, width):
        if what == "linear":
            return nn.Linear(width, draw.choice([4, 6, 8, 12]))
        if what == "norm":
            return nn.BatchNorm1d(width)
        if groups := divisors(width):
            return nn.Conv1d(width, width * draw.choice([1, 2]) if width < 16 else width, 1, groups=draw.choice(groups))
        return None

    def forward(self, x):
        values = [x]
        for what, given, other in self.steps:
            value = values[given]
            if what in PLAIN:
                value = PLAIN[what][2](value)
            elif what in NUMBERED:
                value = NUMBERED[what](value, other)
            elif what in JOINS:
                value = JOINS[what](value, values[other])
            elif what == "conv":
                value = self.layers[other](value[:, :, None])[:, :, 0]
            else:
                value = self.layers[other](value)
            values.append(value)
        return sum(head(value) for head, value in zip(self.heads, values[-len(self.heads) :], strict=True))
