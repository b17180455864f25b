"""Small models in the manner of well-known convolutional ones, with the axes a person would find in them."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.axes.axes_prove import IMAGES, TOKENS, Case, Net


def residual(net, x):
    x = net.stem(x)
    for body in net.bodies:
        x = x + body(x)
    return net.head(x.mean((2, 3)))


def conv_bn(before, width, size=3, **options):
    return nn.Sequential(nn.Conv2d(before, width, size, padding=size // 2, **options), nn.BatchNorm2d(width), nn.ReLU())


def dense(net, x):
    for layer in net.layers:
        x = torch.cat([x, layer(x)], 1)
    return net.head(net.norm(x).mean((2, 3)))


def inception(net, x):
    x = net.stem(x)
    return net.head(torch.cat([branch(x) for branch in net.branches], 1).flatten(1))


def squeeze(net, x):
    x = net.stem(x)
    gate = net.up(net.down(x.mean((2, 3))).relu()).sigmoid()
    return net.head((x * gate[:, :, None, None]).flatten(1))


def u_net(net, x):
    one = net.one(x)
    two = net.two(F.max_pool2d(one, 2))
    return net.head(net.join(torch.cat([one, net.up(two)], 1)))


def shuffle(x, groups):
    batch, _, *spatial = x.shape
    return x.view(batch, groups, -1, *spatial).transpose(1, 2).reshape(batch, -1, *spatial)


def shuffle_one(net, x):
    x = net.stem(x)
    return net.head((x + net.out(shuffle(net.one(x), 2))).mean((2, 3)))


def shuffle_two(net, x):
    left, right = net.stem(x).chunk(2, 1)
    return net.head(shuffle(torch.cat([left, net.right(right)], 1), 2).mean((2, 3)))


def mixer(net, x):
    x = net.embed(x)
    x = x + net.tokens(x.transpose(1, 2)).transpose(1, 2)
    x = x + net.channels(x)
    return net.head(x.mean(1))


def convnext(net, x):
    x = net.stem(x)
    y = net.norm(net.depthwise(x).permute(0, 2, 3, 1))
    y = net.scale * net.down(F.gelu(net.up(y)))
    return net.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


CONVNETS = {
    "residual": Case(
        lambda: Net(
            residual,
            stem=conv_bn(3, 8),
            bodies=nn.ModuleList(nn.Sequential(conv_bn(8, 6), nn.Conv2d(6, 8, 1)) for _ in range(2)),
            head=nn.Linear(8, 5),
        ),
        IMAGES,
        {"stem.0": 8, "bodies.0.0.0": 6, "bodies.1.0.0": 6},
    ),
    "residual-projected": Case(
        lambda: Net(
            lambda net, x: net.head((net.skip(net.stem(x)) + net.body(net.stem(x))).mean((2, 3))),
            stem=conv_bn(3, 8),
            skip=nn.Conv2d(8, 12, 1),
            body=conv_bn(8, 12),
            head=nn.Linear(12, 5),
        ),
        IMAGES,
        {"stem.0": 8, "skip": 12},
    ),
    "inverted-bottleneck": Case(
        lambda: Net(
            residual,
            stem=conv_bn(3, 4),
            bodies=nn.ModuleList([nn.Sequential(conv_bn(4, 12, 1), conv_bn(12, 12, groups=12), nn.Conv2d(12, 4, 1))]),
            head=nn.Linear(4, 5),
        ),
        IMAGES,
        {"stem.0": 4, "bodies.0.0.0": 12},
    ),
    "dense": Case(
        lambda: Net(
            dense,
            layers=nn.ModuleList([conv_bn(3, 4), conv_bn(7, 5), conv_bn(12, 6)]),
            norm=nn.BatchNorm2d(18),
            head=nn.Linear(18, 5),
        ),
        IMAGES,
        {"layers.0.0": 4, "layers.1.0": 5, "layers.2.0": 6},
    ),
    "inception": Case(
        lambda: Net(
            inception,
            stem=conv_bn(3, 8),
            branches=nn.ModuleList(
                [conv_bn(8, 4, 1), nn.Sequential(conv_bn(8, 3, 1), conv_bn(3, 6)), nn.MaxPool2d(3, 1, 1)]
            ),
            head=nn.Linear(18 * 36, 5),
        ),
        IMAGES,
        {"stem.0": 8, "branches.0.0": 4, "branches.1.0.0": 3, "branches.1.1.0": 6},
    ),
    "squeeze-and-excite": Case(
        lambda: Net(squeeze, stem=conv_bn(3, 8), down=nn.Linear(8, 2), up=nn.Linear(2, 8), head=nn.Linear(8 * 36, 5)),
        IMAGES,
        {"stem.0": 8, "down": 2},
    ),
    "u-net": Case(
        lambda: Net(
            u_net,
            one=conv_bn(3, 4),
            two=conv_bn(4, 8),
            up=nn.ConvTranspose2d(8, 6, 2, 2),
            join=conv_bn(10, 5),
            head=nn.Conv2d(5, 2, 1),
        ),
        IMAGES,
        {"one.0": 4, "two.0": 8, "up": 6, "join.0": 5},
    ),
    "shuffle-net": Case(
        lambda: Net(
            shuffle_one,
            stem=conv_bn(3, 8),
            one=nn.Conv2d(8, 12, 1, groups=2),
            out=nn.Conv2d(12, 8, 1, groups=2),
            head=nn.Linear(8, 5),
        ),
        IMAGES,
        {"stem.0.group_width": 4, "one.group_width": 3},
        groups=False,  # the number of groups of a shuffle is written in its code
    ),
    "shuffle-net-two": Case(
        lambda: Net(
            shuffle_two,
            stem=conv_bn(3, 8),
            right=nn.Sequential(conv_bn(4, 6, 1), conv_bn(6, 6, groups=6), conv_bn(6, 4, 1)),
            head=nn.Linear(8, 5),
        ),
        IMAGES,
        None,  # both halves of a chunk have the same number of channels, whatever they are called
        groups=False,
    ),
    "mixer": Case(
        lambda: Net(
            mixer,
            embed=nn.Linear(4, 8),
            tokens=nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 5)),
            channels=nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)),
            head=nn.Linear(8, 3),
        ),
        TOKENS,
        {"embed": 8, "tokens.0": 6, "channels.0": 12},
    ),
    "convnext": Case(
        lambda: Net(
            convnext,
            stem=nn.Conv2d(3, 8, 2, 2),
            depthwise=nn.Conv2d(8, 8, 3, padding=1, groups=8),
            norm=nn.LayerNorm(8),
            up=nn.Linear(8, 12),
            down=nn.Linear(12, 8),
            scale=nn.Parameter(torch.full((8,), 1e-6)),
            head=nn.Linear(8, 5),
        ),
        IMAGES,
        {"stem": 8, "up": 12},
        zeroed=False,
    ),
}
