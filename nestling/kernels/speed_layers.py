"""The features that make training faster or safer than plain PyTorch: whether each is in use, and why."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, NamedTuple

from nestling.torch_private import has_fused_sgd, knows_transforms, replaced


class SpeedLayer(NamedTuple):
    """A feature: its name, whether it is on, and the reason in a sentence."""

    name: str
    on: bool
    reason: str


def speed_layers(accelerate: Literal["auto", "off"] = "auto") -> list[SpeedLayer]:
    """Return all features, as a run with this setting would use them on this machine's CPU.

    Replacements of unsafe kernels come first: they are on whatever the setting is.

    >>> [layer.name for layer in speed_layers() if "safe" in layer.name]
    ['safe strided 1×1 convolutions', 'safe padded convolutions', 'safe instance norms']
    >>> [layer.on for layer in speed_layers("off")][:3], speed_layers("off")[3].on
    ([True, True, True], False)
    """
    return [*_SAFE, *_fast(accelerate != "off"), _private(), _merges()]


_SAFE = [
    SpeedLayer(
        "safe strided 1×1 convolutions",
        True,
        "the pixels that they read are selected first and convolved with stride 1, because oneDNN's kernel for their "
        "gradient writes past its memory (oneDNN issue 6035)",
    ),
    SpeedLayer(
        "safe padded convolutions",
        True,
        "images are padded with zeros first where an output column sees no pixel, because oneDNN's kernel would crash "
        "(oneDNN issue 5942)",
    ),
    SpeedLayer(
        "safe instance norms",
        True,
        "gradients of a single sample get channels-first memory, because PyTorch's are wrong for channels last",
    ),
]


def _fast(on: bool) -> list[SpeedLayer]:
    """Return the features that the setting accelerate switches."""
    layers = [
        ("channels-last memory", True, "faster for convolutions of images, except for wide ones"),
        ("convolutions as products", knows_transforms(), "faster for wide convolutions of small images"),
        ("fused SGD", has_fused_sgd(), "one pass over all weights takes a step"),
        ("cross-entropy of many classes", True, "its gradient is written once"),
        ("groups", True, "small clients of one shape train together (setting group_clients)"),
        ("joined batches", True, "the statistics of norms are measured over several batches at once"),
        ("samples made ready at once", True, "normalised once if a client has few samples and no augmentation"),
    ]
    if not on:
        return [SpeedLayer(name, False, "accelerate=off") for name, _, _ in layers]
    missing = "PyTorch's private function for it is missing or gives a wrong result"
    return [SpeedLayer(name, works, why if works else missing) for name, works, why in layers]


def _private() -> SpeedLayer:
    names = replaced()
    if names:
        return SpeedLayer("kernels for many tensors", False, f"plain PyTorch replaces {', '.join(names)}")
    return SpeedLayer("kernels for many tensors", True, "all private functions of PyTorch passed their test")


def _merges() -> SpeedLayer:
    if find_spec("numba") is None:
        return SpeedLayer("compiled merges", False, "numba is not installed: pip install 'nestling[fast]'")
    return SpeedLayer("compiled merges", True, "numba is installed: random slices are merged in one pass")
