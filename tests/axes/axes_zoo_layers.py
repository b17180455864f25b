"""Small models around the layers of torch, each with the axes that a person would find in it."""

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.axes.axes_prove import IMAGES, SIGNALS, TOKENS, VECTORS, VOLUMES, Case, Net


def stack(*layers):
    return lambda: copy.deepcopy(nn.Sequential(*layers))


def conv_then(norm, width=8, side=4):
    """A convolution, a norm and a linear layer on what is flattened."""

    def build():
        return nn.Sequential(nn.Conv2d(3, width, 3), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(width * side**2, 5))

    return build


def two_convs(second, side):
    """A convolution of 8 channels, another layer, and a linear one on what that gives."""

    def build():
        layer = second()
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), layer, nn.Flatten(), nn.Linear(layer.out_channels * side**2, 5)
        )

    return build


def after_cat(layer, width=16, side=4):
    """Two branches of 8 channels joined, then a layer, then a linear one."""

    def run(net, x):
        return net.head(net.layer(torch.cat([net.left(x), net.right(x)], 1)).relu().flatten(1))

    return lambda: Net(
        run, left=nn.Conv2d(3, 8, 3), right=nn.Conv2d(3, 8, 3), layer=layer(), head=nn.Linear(width * side**2, 5)
    )


LINEAR = {
    "mlp": Case(
        stack(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)),
        VECTORS,
        {"model.0": 8, "model.2": 6},
    ),
    "mlp-without-bias": Case(
        stack(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), VECTORS, {"model.0": 8}
    ),
    "linear-on-a-vector": Case(stack(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (torch.ones(4),), {"model.0": 8}),
    "linear-on-tokens": Case(stack(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), TOKENS, {"model.0": 8}),
    "prelu": Case(stack(nn.Linear(4, 8), nn.PReLU(8), nn.Linear(8, 3)), VECTORS, {"model.0": 8}),
    "prelu-of-one": Case(stack(nn.Linear(4, 8), nn.PReLU(), nn.Linear(8, 3)), VECTORS, {"model.0": 8}),
    "dropout-in-training": Case(
        stack(nn.Linear(4, 8), nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.Linear(8, 3)), VECTORS, {"model.0": 8}
    ),
    "batch-norm-1d": Case(
        stack(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), VECTORS, {"model.0": 8}
    ),
    "softmax-inside": Case(
        stack(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 3)), VECTORS, {"model.0": 8}, zeroed=False
    ),
}

CONV = {
    "conv-bn": Case(conv_then(lambda: nn.BatchNorm2d(8)), IMAGES, {"model.0": 8}),
    "conv-bn-plain": Case(conv_then(lambda: nn.BatchNorm2d(8, affine=False)), IMAGES, {"model.0": 8}),
    "conv-bn-no-statistics": Case(
        conv_then(lambda: nn.BatchNorm2d(8, track_running_stats=False)), IMAGES, {"model.0": 8}
    ),
    "conv-no-norm": Case(conv_then(nn.Identity), IMAGES, {"model.0": 8}),
    "conv-1d": Case(
        stack(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(24, 5)),
        SIGNALS,
        {"model.0": 8},
    ),
    "conv-3d": Case(
        stack(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(8, 5)),
        VOLUMES,
        {"model.0": 8},
    ),
    "conv-without-batch": Case(
        stack(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(0), nn.Linear(8, 5)),
        (IMAGES[0][0],),
        {"model.0": 8},
    ),
    "conv-padded-by-reflection": Case(
        stack(nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(288, 5)),
        IMAGES,
        {"model.0": 8},
    ),
    "conv-padded-around": Case(
        stack(
            nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(96, 5)
        ),
        IMAGES,
        {"model.0": 8, "model.1": 6},
    ),
    "conv-up-and-down": Case(
        stack(
            nn.Conv2d(3, 8, 3),
            nn.Upsample(scale_factor=2),
            nn.MaxPool2d(2),
            nn.Dropout2d(),
            nn.Flatten(),
            nn.Linear(128, 5),
        ),
        IMAGES,
        {"model.0": 8},
    ),
    **{
        f"conv-of-{groups}-groups": Case(
            two_convs(lambda groups=groups: nn.Conv2d(8, 12 if groups < 8 else 16, 3, groups=groups), 2),
            IMAGES,
            axes,
        )
        for groups, axes in {
            1: {"model.0": 8, "model.2": 12},
            2: {"model.0.groups": 2, "model.0.group_width": 4, "model.2.group_width": 6},
            4: {"model.0.groups": 4, "model.0.group_width": 2, "model.2.group_width": 3},
            8: {"model.0": 8, "model.2.group_width": 2},  # depth-wise, two filters to a channel
        }.items()
    },
    "conv-depthwise": Case(two_convs(lambda: nn.Conv2d(8, 8, 3, groups=8), 2), IMAGES, {"model.0": 8}),
    "conv-depthwise-by-three": Case(
        two_convs(lambda: nn.Conv2d(8, 24, 3, groups=8), 2), IMAGES, {"model.0": 8, "model.2.group_width": 3}
    ),
    **{
        f"transposed-of-{groups}-groups": Case(
            two_convs(lambda groups=groups: nn.ConvTranspose2d(8, 12 if groups < 8 else 16, 2, 2, groups=groups), 8),
            IMAGES,
            axes,
        )
        for groups, axes in {
            1: {"model.0": 8, "model.2": 12},
            2: {"model.0.groups": 2, "model.0.group_width": 4, "model.2": 6},
            4: {"model.0.groups": 4, "model.0.group_width": 2, "model.2": 3},
            8: {"model.0": 8, "model.2": 2},
        }.items()
    },
    "transposed-1d": Case(
        stack(nn.Conv1d(3, 8, 3), nn.ConvTranspose1d(8, 6, 3), nn.Flatten(), nn.Linear(54, 5)),
        SIGNALS,
        {"model.0": 8, "model.1": 6},
    ),
    "transposed-3d": Case(
        stack(nn.Conv3d(3, 8, 3), nn.ConvTranspose3d(8, 6, 2), nn.Flatten(), nn.Linear(162, 5)),
        VOLUMES,
        {"model.0": 8, "model.1": 6},
    ),
    "grouped-conv-after-cat": Case(
        after_cat(lambda: nn.Conv2d(16, 8, 3, groups=4), 8, 2),
        IMAGES,
        {"left.groups": 2, "left.group_width": 4, "right.groups": 2, "layer.group_width": 2},
    ),
    "grouped-transposed-after-cat": Case(
        after_cat(lambda: nn.ConvTranspose2d(16, 8, 3, groups=4), 8, 6),
        IMAGES,
        {"left.groups": 2, "left.group_width": 4, "right.groups": 2, "layer": 2},
    ),
    "depthwise-after-cat": Case(
        after_cat(lambda: nn.Conv2d(16, 16, 3, groups=16), 16, 2), IMAGES, {"left": 8, "right": 8}
    ),
}

NORM = {
    "group-norm": Case(
        conv_then(lambda: nn.GroupNorm(4, 16), 16),
        IMAGES,
        {"model.0.groups": 4, "model.0.group_width": 4},
        zeroed=False,
    ),
    "group-norm-plain": Case(
        conv_then(lambda: nn.GroupNorm(4, 16, affine=False), 16),
        IMAGES,
        None,  # a norm without parameters need not be told how many of its groups are left
        zeroed=False,
    ),
    "group-norm-of-one": Case(conv_then(lambda: nn.GroupNorm(1, 8)), IMAGES, {"model.0": 8}, zeroed=False),
    "group-norm-of-all": Case(conv_then(lambda: nn.GroupNorm(8, 8)), IMAGES, {"model.0": 8}),
    "group-norm-of-all-plain": Case(conv_then(lambda: nn.GroupNorm(8, 8, affine=False)), IMAGES, {"model.0": 8}),
    "group-norm-after-cat": Case(
        after_cat(lambda: nn.GroupNorm(4, 16)),
        IMAGES,
        {"left.groups": 2, "left.group_width": 4, "right.groups": 2},
        zeroed=False,
    ),
    "group-norm-of-all-after-cat": Case(after_cat(lambda: nn.GroupNorm(16, 16)), IMAGES, {"left": 8, "right": 8}),
    "instance-norm": Case(conv_then(lambda: nn.InstanceNorm2d(8)), IMAGES, {"model.0": 8}),
    "instance-norm-affine": Case(conv_then(lambda: nn.InstanceNorm2d(8, affine=True)), IMAGES, {"model.0": 8}),
    "instance-norm-statistics": Case(
        conv_then(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)), IMAGES, {"model.0": 8}
    ),
    "layer-norm": Case(stack(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)), VECTORS, {"model.0": 8}, zeroed=False),
    "layer-norm-plain": Case(
        stack(nn.Linear(4, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 3)),
        VECTORS,
        {"model.0": 8},
        zeroed=False,
    ),
    "layer-norm-without-bias": Case(
        stack(nn.Linear(4, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, 3)), VECTORS, {"model.0": 8}, zeroed=False
    ),
    "layer-norm-of-images": Case(conv_then(lambda: nn.LayerNorm([8, 4, 4])), IMAGES, {"model.0": 8}, zeroed=False),
    "rms-norm": Case(stack(nn.Linear(4, 8), nn.RMSNorm(8), nn.Linear(8, 3)), VECTORS, {"model.0": 8}, zeroed=False),
    "rms-norm-plain": Case(
        stack(nn.Linear(4, 8), nn.RMSNorm(8, elementwise_affine=False), nn.Linear(8, 3)),
        VECTORS,
        {"model.0": 8},
        zeroed=False,
    ),
    "spectral-norm": Case(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3)).eval(),
        VECTORS,
        {"model.0": 8},
    ),
    "spectral-norm-of-groups": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, groups=4)),
            nn.Flatten(),
            nn.Linear(32, 3),
        ).eval(),
        IMAGES,
        {"model.0.groups": 4, "model.0.group_width": 2, "model.1.group_width": 2},
    ),
    "weight-norm-beside": Case(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
        ),
        VECTORS,
        {"model.2": 6},
    ),
    "weight-norm-of-groups": Case(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Conv2d(3, 6, 3, groups=3)), nn.Flatten(), nn.Linear(96, 6), nn.Linear(6, 3)
        ),
        IMAGES,
        {"model.2": 6},
    ),
}

LAYERS = LINEAR | CONV | NORM
