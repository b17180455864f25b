"""The tensor names of torchvision and timm for the models that Nestling has, too.

The names are those that both libraries publish: ResNet18/34 and Wide ResNet101_2 (the same in both), ViT-B/16 of
torchvision (``in_proj_weight``; the MLP as ``linear_1``/``linear_2`` in older and ``0``/``3`` in newer files) and of
timm (``qkv``), and the convolutions of VGG16 with and without norms. They were compared with timm 1.0.30 and
torchvision 0.29.2 on random weights: every tensor is matched, and ResNet18/34, Wide ResNet101_2 and ViT-B/16 of timm
compute the same logits to the last bit, ViT-B/16 of torchvision to 1e-6. The tests need neither library: they use small
nets with these names, and digests of the libraries' names and shapes in full size.

Departure: VGG's three linear layers have no counterpart in ours (see :mod:`nestling.nets.vgg`) and are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from nestling.nets.resnet import ResNet
from nestling.nets.vgg import VGG
from nestling.nets.vit import VisionTransformer

Rename = Callable[[Mapping[str, Tensor]], dict[str, str]]
_FUSED = "[qkv]"  # in one of our names: the tensor holds queries, keys and values, one after the other


class Offer(NamedTuple):
    """A tensor for one of our names: its name in the file, its description in messages, and its value."""

    source: str
    description: str
    tensor: Tensor


@dataclass(frozen=True)
class Layout:
    """One way to name tensors: its label, our class that it fits, and the mapping of its names to ours."""

    label: str
    kind: type[nn.Module]
    rename: Rename

    def translate(self, weights: Mapping[str, Tensor]) -> dict[str, Offer]:
        """Return the tensors in ``weights`` under our names; names that are not of this layout are left out.

        >>> import torch
        >>> offers = LAYOUTS[0].translate({"layer2.0.downsample.1.bias": torch.zeros(8), "ema": torch.zeros(1)})
        >>> list(offers)
        ['stages.1.0.skip.norm.bias']
        """
        offers: dict[str, Offer] = {}
        for theirs, ours in self.rename(weights).items():
            tensor = weights[theirs]
            if _FUSED not in ours:
                offers.setdefault(ours, Offer(theirs, theirs, tensor))
                continue
            thirds = tensor.tensor_split(3) if tensor.dim() else (tensor,) * 3
            for letter, third in zip("qkv", thirds, strict=True):
                offers.setdefault(ours.replace(_FUSED, letter), Offer(theirs, f"the {letter} third of {theirs}", third))
        return offers


def _by_rules(*rules: tuple[str, str]) -> Rename:
    """Return a function that renames by the first matching rule: a pattern, and its replacement."""
    compiled = [(re.compile(pattern), ours) for pattern, ours in rules]

    def rename(weights: Mapping[str, Tensor]) -> dict[str, str]:
        names = {}
        for name in weights:
            for pattern, ours in compiled:
                if match := pattern.fullmatch(name):
                    names[name] = match.expand(ours)
                    break
        return names

    return rename


def _resnet() -> Rename:
    blocks = []
    for stage in range(4):
        theirs, ours = rf"layer{stage + 1}\.(\d+)", rf"stages.{stage}.\1"
        blocks += [
            (theirs + r"\.conv(\d)\.(\w+)", ours + r".body.conv\2.\3"),
            (theirs + r"\.bn(\d)\.(\w+)", ours + r".body.norm\2.\3"),
            (theirs + r"\.downsample\.0\.(\w+)", ours + r".skip.conv.\2"),
            (theirs + r"\.downsample\.1\.(\w+)", ours + r".skip.norm.\2"),
        ]
    stem = [(r"conv1\.(\w+)", r"stem.conv.\1"), (r"bn1\.(\w+)", r"stem.norm.\1")]
    return _by_rules(*stem, *blocks, (r"fc\.(\w+)", r"head.\1"))


# torchvision's names, timm's and ours; those of a block are the parts between its number and the tensor's own name
_VIT = (
    (r"conv_proj\.(\w+)", r"patch_embed\.proj\.(\w+)", r"patch.\1"),
    (r"class_token", r"cls_token", r"token.weight"),
    (r"encoder\.pos_embedding", r"pos_embed", r"position.weight"),
    (r"encoder\.ln\.(\w+)", r"norm\.(\w+)", r"norm.\1"),
    (r"heads\.head\.(\w+)", r"head\.(\w+)", r"head.\1"),
)
_VIT_BLOCK = (
    (r"ln_1\.", r"norm1\.", r"attention.body.norm."),
    (r"self_attention\.in_proj_", r"attn\.qkv\.", r"attention.body.attention.[qkv]."),
    (r"self_attention\.out_proj\.", r"attn\.proj\.", r"attention.body.attention.o."),
    (r"ln_2\.", r"norm2\.", r"mlp.body.norm."),
    (r"mlp\.(?:0|linear_1)\.", r"mlp\.fc1\.", r"mlp.body.up."),
    (r"mlp\.(?:3|linear_2)\.", r"mlp\.fc2\.", r"mlp.body.down."),
)


def _vit(column: int, block: str) -> Rename:
    inside = [(rf"{block}(\d+)\.{names[column]}(\w+)", rf"blocks.\1.{names[-1]}\2") for names in _VIT_BLOCK]
    return _by_rules(*((names[column], names[-1]) for names in _VIT), *inside)


def _vgg(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Rename the convolutions and norms of VGG, whose names are indices into one list of layers."""
    parts: dict[int, list[str]] = {}
    for name in weights:
        if match := re.fullmatch(r"features\.(\d{1,3})\.(\w+)", name):
            parts.setdefault(int(match[1]), []).append(match[2])
    convs = sorted(i for i in parts if "weight" in parts[i] and weights[f"features.{i}.weight"].dim() == 4)
    names = {}
    stage, number, next_conv = 0, 0, 0
    for i in convs:
        if i > next_conv:  # there is a pool before it
            stage, number = stage + 1, 0
        number += 1
        has_norm = i + 1 in parts and i + 1 not in convs
        for part in parts[i]:
            names[f"features.{i}.{part}"] = f"stages.{stage}.conv{number}.{part}"
        for part in parts[i + 1] if has_norm else ():
            names[f"features.{i + 1}.{part}"] = f"stages.{stage}.norm{number}.{part}"
        next_conv = i + (3 if has_norm else 2)  # after the norm, if there is one, and the ReLU
    return names


LAYOUTS = (
    Layout("ResNet of torchvision and timm", ResNet, _resnet()),
    Layout("ViT of torchvision", VisionTransformer, _vit(0, r"encoder\.layers\.encoder_layer_")),
    Layout("ViT of timm", VisionTransformer, _vit(1, r"blocks\.")),
    Layout("VGG of torchvision and timm", VGG, _vgg),
)
