"""Small models with something odd about them: ties, tables, names, inputs, outputs, tricks."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from tests.axes.axes_prove import IMAGES, TOKENS, VECTORS, WORDS, Case, Net


def tied_words(net, words):
    return F.linear(net.body(net.embed(words)), net.embed.weight)


def tie():
    net = nn.Sequential(OrderedDict(embed=nn.Embedding(7, 8), body=nn.Linear(8, 8), head=nn.Linear(8, 7, bias=False)))
    net.head.weight = net.embed.weight
    return net


def two_names():
    body = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(4, 8), body, nn.ReLU(), body, nn.Linear(8, 3))


def positions(net, words):
    return net.head(net.embed(words) + net.table[:, : words.shape[1]])


def turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def rotary(net, x):
    q, k = turned(net.q(x), net.cos, net.sin), turned(net.k(x), net.cos, net.sin)
    return net.head((q @ k.transpose(-1, -2)).softmax(-1) @ net.v(x))


def film(net, x):
    scale, shift = net.condition(x).chunk(2, -1)
    return net.head(net.one(x) * scale + shift)


def chosen(net, x):
    scores = net.router(x).softmax(-1)
    scores = scores * (scores >= scores.topk(2, -1)[0][:, -1:])
    return sum(scores[:, k : k + 1] * expert(x) for k, expert in enumerate(net.experts))


def merged_patches(net, x):
    x = net.conv(x)
    corners = [x[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)]
    return net.head(net.reduce(torch.cat(corners, 1).flatten(2).transpose(1, 2)).mean(1))


class OddNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("a b", nn.Linear(4, 8))
        self.add_module("a+b", nn.Linear(8, 6))
        self.add_module("é(1)", nn.Linear(6, 3))

    def forward(self, x):
        for module in self.children():
            x = module(x).relu()
        return x


def optional(net, x, *, other=None, scale=1.0):
    x = net.one(x) + (0 if other is None else net.two(other["deep"][0]))
    return {"scores": net.head(x.relu()) * scale, "extra": (x.sum(-1), [net.head(x)])}


def written(net, x):
    """Two results put side by side by writing them into a tensor of zeros."""
    one, two = net.one(x), net.two(x)
    both = x.new_zeros(len(x), one.shape[1] + two.shape[1])
    both[:, : one.shape[1]] = one
    both[:, one.shape[1] :] = two
    return net.head(both)


ODD = {
    "tied": Case(tie, WORDS, {"embed": 8}),
    "tied-by-function": Case(
        lambda: Net(tied_words, embed=nn.Embedding(7, 8), body=nn.Linear(8, 8)), WORDS, {"embed": 8}
    ),
    "module-used-twice": Case(
        lambda: Net(
            lambda net, x: net.head(net.body(net.body(net.embed(x)).relu())),
            embed=nn.Linear(4, 8),
            body=nn.Linear(8, 8),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
        {"embed": 8},
    ),
    "module-under-two-names": Case(
        two_names,
        VECTORS,
        {"model.0": 8},
    ),
    "float-buffer": Case(
        lambda: Net(
            lambda net, x: net.head(net.one(x) * net.scale),
            one=nn.Linear(4, 8),
            head=nn.Linear(8, 3),
            scale=torch.rand(8),
        ),
        VECTORS,
        {"one": 8},
    ),
    "learned-table-longer-than-the-example": Case(
        lambda: Net(
            positions, embed=nn.Embedding(7, 8), table=nn.Parameter(torch.randn(1, 9, 8)), head=nn.Linear(8, 3)
        ),
        WORDS,
        {"embed": 8},
    ),
    "saved-table-longer-than-the-example": Case(
        lambda: Net(positions, embed=nn.Embedding(7, 8), table=torch.randn(1, 9, 8), head=nn.Linear(8, 3)),
        WORDS,
        {"embed": 8},
    ),
    "never-used": Case(
        lambda: Net(
            lambda net, x: net.head(net.one(x).relu()),
            one=nn.Linear(4, 8),
            idle=nn.Linear(4, 6),
            spare=nn.Parameter(torch.rand(8)),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
        {"one": 8},
    ),
    "odd-names": Case(OddNames, VECTORS, {"a_b": 8, "a_b.2": 6}),
    "nested-inputs-and-outputs": Case(
        lambda: Net(optional, one=nn.Linear(4, 8), two=nn.Linear(6, 8), head=nn.Linear(8, 3)),
        VECTORS,
        {"one": 8},
        kwexample={"other": {"deep": [torch.linspace(-1, 1, 12).view(2, 6)]}, "scale": 2.0},
    ),
    "parameter-list": Case(
        lambda: Net(
            lambda net, x: (x @ net.weights[0]).relu() @ net.weights[1] + net.bias,
            weights=nn.ParameterList([torch.randn(4, 8), torch.randn(8, 3)]),
            bias=nn.Parameter(torch.randn(3)),
        ),
        VECTORS,
        {"weights.0": 8},
    ),
    "parameter-dict": Case(
        lambda: Net(
            lambda net, x: (x @ net.weights["in"]).relu() @ net.weights["out"],
            weights=nn.ParameterDict({"in": torch.randn(4, 8), "out": torch.randn(8, 3)}),
        ),
        VECTORS,
        {"weights.in": 8},
    ),
    "einsum": Case(
        lambda: Net(
            lambda net, x: torch.einsum("bi,hdi->bhd", x, net.inner).relu().flatten(1) @ net.out,
            inner=nn.Parameter(torch.randn(2, 4, 4)),
            out=nn.Parameter(torch.randn(8, 3)),
        ),
        VECTORS,
        {"inner": 2, "inner.2": 4},
    ),
    # a rotation couples every unit with its partner in the other half, and the saved tables with both
    "saved-rotary-tables": Case(
        lambda: Net(
            rotary,
            q=nn.Linear(4, 8),
            k=nn.Linear(4, 8),
            v=nn.Linear(4, 6),
            head=nn.Linear(6, 3),
            cos=torch.rand(5, 8),
            sin=torch.rand(5, 8),
        ),
        TOKENS,
        {"q": 4, "v": 6},
    ),
    "film": Case(
        lambda: Net(film, one=nn.Linear(4, 8), condition=nn.Linear(4, 16), head=nn.Linear(8, 3)),
        VECTORS,
        {"condition": 8},
    ),
    "experts": Case(
        lambda: Net(
            chosen,
            router=nn.Linear(4, 3),
            experts=nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)) for _ in range(3)),
        ),
        VECTORS,
        {"experts.0.0": 6, "experts.1.0": 6, "experts.2.0": 6},
    ),
    "merged-patches": Case(
        lambda: Net(merged_patches, conv=nn.Conv2d(3, 6, 1), reduce=nn.Linear(24, 8), head=nn.Linear(8, 3)),
        IMAGES,
        {"conv": 6, "reduce": 8},
    ),
    "tied-to-its-transpose": Case(
        lambda: Net(
            lambda net, x: F.linear(net.one(x).relu(), net.one.weight.t()),
            one=nn.Linear(4, 8),
        ),
        VECTORS,
        {"one": 8},
    ),
    "matrix-and-its-transpose": Case(
        lambda: Net(
            lambda net, x: net.head(net.one(x) @ net.square + net.one(x) @ net.square.t()),
            one=nn.Linear(4, 8),
            square=nn.Parameter(torch.randn(8, 8)),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
        {"one": 8},
    ),
    "pairs-of-units": Case(
        lambda: Net(
            lambda net, x: net.head(torch.einsum("bi,bj->bij", net.one(x), net.one(x)).flatten(1)),
            one=nn.Linear(4, 6),
            head=nn.Linear(36, 3),
        ),
        VECTORS,
        {"one": 6},
    ),
    "low-rank": Case(
        lambda: Net(
            lambda net, x: net.head(net.one(x) + x @ net.down @ net.up),
            one=nn.Linear(4, 8),
            down=nn.Parameter(torch.randn(4, 3)),
            up=nn.Parameter(torch.randn(3, 8)),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
        {"one": 8, "down": 3},
    ),
    "written-into-zeros": Case(
        lambda: Net(written, one=nn.Linear(4, 5), two=nn.Linear(4, 6), head=nn.Linear(11, 3)),
        VECTORS,
        {"one": 5, "two": 6},
    ),
    "numbers-in-names": Case(
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 3))),
        VECTORS,
        {"model.0.0": 8},
    ),
    "step-size-of-no-dims": Case(
        lambda: Net(
            lambda net, x: net.head(net.one(x) + net.step * net.two(x)),
            one=nn.Linear(4, 8),
            two=nn.Linear(4, 8),
            step=nn.Parameter(torch.tensor(0.5)),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
        {"one": 8},
    ),
}
