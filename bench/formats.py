"""How much faster nets are with formats and kernels by layer, and statistics of norms over several batches at once.

The choices behind them (`nestling.kernels.memory_format`) are fixed numbers, so that the same seed gives the same bytes
on all machines of a kind. Which of them loses on this one is said in figures of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.figure import Figure, Table
from bench.timing import side_by_side
from nestling.kernels.kn2row import Kn2row
from nestling.kernels.memory_format import set_memory_format
from nestling.methods.parts.static_norms import make_static, norm_sums
from nestling.nets import build

_BATCH, _BATCHES = 10, 10
_WIDTHS = (64, 128, 256, 512)
_NETS = (
    *((name, size, share) for name, size in (("cnn", 28), ("preresnet18", 32)) for share in (1, 2, 4, 8, 16)),
    *(("resnet18", 32, share) for share in (1, 2)),
    ("resnet34", 32, 1),
    ("vgg16", 32, 1),
    ("wide-resnet101-2", 64, 1),
)


_LAYERS = tuple((channels, side) for channels in (16, 64, 128, 256, 512) for side in (16, 8, 4))
_LOSES = 0.9  # of the speed of the best: below, a choice loses by more than the noise of a measurement


def formats(quick: bool = False) -> Iterator[Figure | Table]:
    """Training steps, tests and statistics of norms of one client, against plain ways to do the same."""
    yield from _nets(quick)
    yield from _layers(quick)


def _nets(quick: bool) -> Iterator[Figure | Table]:
    nets = _NETS[4:5] if quick else _NETS
    rows = tuple(
        (f"{name} {'1' if share == 1 else f'1/{share}'}", _ratios(name, size, share, 1 if quick else 5))
        for name, size, share in nets
    )
    note = (
        f"training steps and tests on a batch of {_BATCH}: how many times as fast as with channels first, and as with "
        f"memory formats alone; statistics: {_BATCHES} batches together, how many times as fast as one by one"
    )
    columns = ("training step", "step by kn2row", "test", "test by kn2row", "statistics")
    yield Table("memory formats, kn2row and joined batches", columns, rows, note)
    for column, choice in enumerate(("formats by layer", "kn2row", "formats by layer in tests", "kn2row in tests")):
        yield _verdict(f"{choice}, least gain over nets", {name: ratios[column] for name, ratios in rows})
    yield _verdict("joined batches, least gain over nets", {name: ratios[-1] for name, ratios in rows})


def _layers(quick: bool) -> Iterator[Figure | Table]:
    """Single convolutions in every way that they could be computed, and what `set_memory_format` chooses."""
    rows, lost = [], {}
    for channels, side in _LAYERS[-3:-1] if quick else _LAYERS:
        images = torch.randn(_BATCH, channels, side, side)
        ways = _ways(channels)
        seconds = dict(zip(ways, side_by_side(*_steps(ways, images), repeats=1 if quick else 9), strict=True))
        speeds = {way: seconds["channels first"] / spent for way, spent in seconds.items()}
        chosen = _chosen(channels, images)
        name = f"{channels} channels, {side}×{side}"
        lost[f"{name} ({chosen})"] = speeds[chosen] / max(speeds.values())
        rows.append((name, (speeds["channels last"], speeds["products"], lost[f"{name} ({chosen})"])))
    note = (
        f"a 3×3 convolution, forward and backward, on {_BATCH} images: speed by that of channels first; chosen by best"
    )
    yield Table("ways to compute a convolution", ("channels last", "products", "chosen"), tuple(rows), note)
    yield _verdict("format chosen by layer, least share of the best", lost)


def _ways(channels: int) -> dict[str, nn.Conv2d]:
    """The same convolution with channels first, with channels last, and as products."""
    first = nn.Conv2d(channels, channels, 3, padding=1)
    last, products = copy.deepcopy(first), copy.deepcopy(first)
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    Kn2row.become(products)
    return {"channels first": first, "channels last": last, "products": products}


def _steps(ways: dict[str, nn.Conv2d], images: Tensor) -> list[Callable[[], None]]:
    laid = images.contiguous(memory_format=torch.channels_last)

    def step(layer: nn.Module, images: Tensor) -> None:
        layer(images).sum().backward()
        layer.zero_grad()

    given = {way: (images if way == "channels first" else laid).clone().requires_grad_() for way in ways}
    return [lambda way=way, layer=layer: step(layer, given[way]) for way, layer in ways.items()]  # type: ignore[misc]


def _chosen(channels: int, images: Tensor) -> str:
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    set_memory_format(nn.Sequential(layer), images)
    if isinstance(layer, Kn2row):
        return "products"
    last = layer.weight.is_contiguous(memory_format=torch.channels_last)
    return "channels last" if last else "channels first"


def _verdict(name: str, ratios: dict[str, float]) -> Figure:
    """Say where a choice loses on this machine, if it does anywhere."""
    losers = [f"{what} {ratio:.2f}" for what, ratio in ratios.items() if ratio < _LOSES]
    note = f"loses here: {', '.join(losers)}" if losers else "no choice loses here"
    return Figure(name, min(ratios.values()), "×", f"≥ {_LOSES}", not losers, note)


def _ratios(name: str, size: int, share: int, repeats: int) -> tuple[float, ...]:
    plain = build(name, **({} if share == 1 else {"widths": tuple(width // share for width in _WIDTHS)}))
    make_static(plain)
    laid, fast = copy.deepcopy(plain), copy.deepcopy(plain)
    images = torch.randn(_BATCH, 1 if name == "cnn" else 3, size, size)
    set_memory_format(laid)
    set_memory_format(fast, images)
    batches = [images + k for k in range(_BATCHES)]
    pairs = (
        (lambda: _step(plain, images), lambda: _step(fast, images)),
        (lambda: _step(laid, images), lambda: _step(fast, images)),
        (lambda: _test(plain, images), lambda: _test(fast, images)),
        (lambda: _test(laid, images), lambda: _test(fast, images)),
        (lambda: [norm_sums(fast, [batch]) for batch in batches], lambda: norm_sums(fast, batches)),
    )
    return tuple(before / now for before, now in (side_by_side(*pair, repeats=repeats) for pair in pairs))


def _step(model: nn.Module, images: Tensor) -> None:
    model.train()
    F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long)).backward()
    model.zero_grad()


@torch.no_grad()
def _test(model: nn.Module, images: Tensor) -> None:
    model.eval()
    model(images)
