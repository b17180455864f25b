"""Every model by name, with the papers' values.

An option is any keyword of the model's class; the default is the paper's value.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

import msgspec
import torch
from torch import Tensor, nn

from nestling.errors import ModelError, first_line, nearest
from nestling.nets.cnn import CNN
from nestling.nets.exits import Exits
from nestling.nets.lstm import LSTM
from nestling.nets.mlp import MLP
from nestling.nets.preresnet import PreResNet
from nestling.nets.resnet import ResNet
from nestling.nets.transformer import Transformer
from nestling.nets.vgg import VGG
from nestling.nets.vit import VisionTransformer

Options = Mapping[str, Any]

_MAX_SIZE = 10**7  # larger sizes are typing errors, and counts would overflow


@dataclass(frozen=True)
class Entry:
    """One model: its origin, how to make it, and the shape of one input given its options.

    ``tokens`` is the option that bounds the ids of a model that reads ids, and empty for one that reads floats.
    """

    about: str
    make: Callable[..., nn.Module]
    shape: Callable[[Options], tuple[int, ...]]
    tokens: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the model with their defaults."""
        return {p.name: p.default for p in inspect.signature(self.make).parameters.values()}


def _image(size: int) -> Callable[[Options], tuple[int, ...]]:
    return lambda o: (o["channels"], size, size)


def _square(o: Options) -> tuple[int, ...]:
    return (o["channels"], o["size"], o["size"])


MODELS: dict[str, Entry] = {
    "mlp": Entry("FedAvg's two-hidden-layer perceptron, MNIST.", MLP, _square),
    "cnn": Entry("HeteroFL's convolutional net, MNIST (Table 6).", partial(CNN, 2), _image(28)),
    "cnn1d": Entry(
        "HeteroFL's net in one dimension, for sensor windows (ours).",
        partial(CNN, 1, channels=9, classes=6),
        lambda o: (o["channels"], 128),
    ),
    "lstm": Entry("FedAvg's character model, Shakespeare as in LEAF.", LSTM, lambda o: (80,), "vocabulary"),
    "preresnet18": Entry("FedRolex's pre-activation ResNet18, CIFAR.", PreResNet, _image(32)),
    "preresnet18-paper": Entry(
        "HeteroFL's pre-activation ResNet18 as in its tables: blocks [1, 1, 1, 2], CIFAR-10.",
        partial(PreResNet, depths=(1, 1, 1, 2)),
        _image(32),
    ),
    "resnet8": Entry(
        "FedMorph's ResNet8, MNIST and EMNIST (Table 7).",
        partial(ResNet, depths=(1, 1, 1, 1), project_first=True, channels=1, learn_steps=False),
        _image(28),
    ),
    "resnet18": Entry("NeFL's ResNet18, CIFAR-10 (Table 10).", partial(ResNet, pool=True), _image(32)),
    "resnet34": Entry(
        "NeFL's ResNet34, CIFAR-10 (Table 11).",
        partial(ResNet, depths=(3, 4, 6, 3), pool=True),
        _image(32),
    ),
    "resnet18-exits": Entry(
        "DepthFL's ResNet18, a classifier after every stage, CIFAR (Kim et al., 2023).", Exits, _image(32)
    ),
    "resnet34-exits": Entry(
        "The same of ResNet34, a classifier after every stage (ours, after DepthFL's).",
        partial(Exits, depths=(3, 4, 6, 3)),
        _image(32),
    ),
    "resnet56": Entry(
        "NeFL's ResNet56, CIFAR-10 (Table 12).",
        partial(ResNet, depths=(9, 9, 9), widths=(16, 32, 64)),
        _image(32),
    ),
    "resnet110": Entry(
        "NeFL's ResNet110, CIFAR-10 (Table 14).",
        partial(ResNet, depths=(18, 18, 18), widths=(16, 32, 64)),
        _image(32),
    ),
    "wide-resnet101-2": Entry(
        "NeFL's Wide ResNet101_2, CIFAR-10 from ImageNet weights (Table 15).",
        partial(
            ResNet,
            depths=(3, 4, 23, 3),
            widths=(128, 256, 512, 1024),
            bottleneck=True,
            expansion=2,
            stem_width=64,
            stem_kernel=7,
            stem_stride=2,
            pool=True,
        ),
        _image(224),
    ),
    "vgg16": Entry("FedMorph's VGG16, CIFAR-10 (Table 8).", VGG, _image(32)),
    "vit-tiny": Entry(
        "A vision transformer for 32×32 images (ours, after NeFL's).",
        partial(VisionTransformer, size=32, patch=4, width=192, heads=3),
        _square,
    ),
    "vit-b16": Entry("NeFL's ViT-B/16, CIFAR-10 from ImageNet weights (Table 13).", VisionTransformer, _square),
    "transformer-mlm": Entry(
        "HeteroFL's masked language model, WikiText-2 (Table 6).",
        Transformer,
        lambda o: (o["positions"],),
        "vocabulary",
    ),
    "transformer-nwp": Entry(
        "FedRolex's next-word model, Stack Overflow (section 4).",
        partial(
            Transformer,
            vocabulary=10000,
            width=128,
            depth=3,
            hidden=2048,
            dropout=0.1,
            activation="relu",
            causal=True,
        ),
        lambda o: (min(20, o["positions"]),),
        "vocabulary",
    ),
}


def names() -> list[str]:
    """List the names that :func:`build` knows, in the order of the table.

    >>> names()[:4]
    ['mlp', 'cnn', 'cnn1d', 'lstm']
    """
    return list(MODELS)


def build(name: str, **options: Any) -> nn.Module:
    """Return the model called ``name``, newly initialised.

    >>> sum(p.numel() for p in build("mlp").parameters())
    199210
    >>> build("cnn", norm="gn", classes=62).head
    Linear(in_features=512, out_features=62, bias=True)
    """
    entry, merged = _look_up(name, options)
    _check_values(name, entry, merged, options)
    try:
        return entry.make(**options)
    except ModelError:
        raise
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as problem:
        chosen = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "its defaults"
        raise ModelError(f"model {name!r} cannot be built with {chosen}: {first_line(problem)}") from problem


def example(name: str, batch: int = 2, **options: Any) -> tuple[Tensor, ...]:
    """Return inputs that ``build(name, **options)`` accepts, on the CPU; every call returns the same ones.

    >>> [x.shape for x in example("cnn", batch=5)]
    [torch.Size([5, 1, 28, 28])]
    >>> example("lstm")[0].dtype
    torch.int64
    """
    entry, merged = _look_up(name, options)
    size = (batch, *entry.shape(merged))
    random = torch.Generator("cpu").manual_seed(0)  # its own generator, so that the caller's is not used
    if entry.tokens:
        return (torch.randint(merged[entry.tokens], size, generator=random, device="cpu"),)
    return (torch.randn(size, generator=random, device="cpu"),)


def _look_up(name: str, options: Options) -> tuple[Entry, dict[str, Any]]:
    """Return the entry, and its default options updated by `options`; raise `ModelError` for unknown names."""
    if name not in MODELS:
        raise ModelError(f"there is no model {name!r}{nearest(name.lower().replace('_', '-'), MODELS)}")
    entry = MODELS[name]
    known = entry.options
    if unknown := [option for option in options if option not in known]:
        accepted = ", ".join(map(repr, sorted(known)))
        hint = nearest(unknown[0], sorted(known))
        advice = f" (there are {accepted}){hint}" if "did you mean" in hint else f": there are {accepted}"
        raise ModelError(f"model {name!r} has no option {' or '.join(map(repr, unknown))}{advice}")
    return entry, known | dict(options)


def _check_values(name: str, entry: Entry, merged: Options, options: Options) -> None:
    """Raise `ModelError` for options of a wrong type, sizes below 1 and empty lists."""
    maker = entry.make.func if isinstance(entry.make, partial) else entry.make
    hints = get_type_hints(maker.__init__)
    for option, value in options.items():
        try:
            msgspec.convert(value, hints[option])
        except msgspec.ValidationError as problem:
            reason = str(problem).partition(" - at `")[0]
            raise ModelError(
                f"the option {option!r} of model {name!r} cannot be {value!r}: {reason[:1].lower()}{reason[1:]}"
            ) from None
        least = 0 if option == "special" else 1
        if not all(least <= number <= _MAX_SIZE for number in _whole_numbers(value)):
            raise ModelError(
                f"the option {option!r} of model {name!r} cannot be {value!r}: sizes are from {least} to {_MAX_SIZE:,}"
            )
        if isinstance(value, list | tuple) and not (value and all(part not in ([], ()) for part in value)):
            raise ModelError(f"the option {option!r} of model {name!r} cannot be {value!r}: it needs at least one size")
    depths, widths = merged.get("depths"), merged.get("widths")
    if depths is not None and widths is not None and len(depths) != len(widths):
        raise ModelError(
            f"model {name!r} needs as many depths as widths, one of each for every stage, not {len(depths)} depths "
            f"and {len(widths)} widths"
        )


def _whole_numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers in an option, at any depth."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _whole_numbers(part)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value
