"""How much faster nets are with formats and kernels by layer, and statistics of norms over several batches at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.bench.figure import Table
from nestling.bench.timing import side_by_side
from nestling.local.formats import fast_format
from nestling.local.norms import static, statistics
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


def formats(quick: bool = False) -> Iterator[Table]:
    """Training steps, tests and statistics of norms of one client, against plain ways to do the same."""
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


def _ratios(name: str, size: int, share: int, repeats: int) -> tuple[float, ...]:
    plain = build(name, **({} if share == 1 else {"widths": tuple(width // share for width in _WIDTHS)}))
    static(plain)
    laid, fast = copy.deepcopy(plain), copy.deepcopy(plain)
    images = torch.randn(_BATCH, 1 if name == "cnn" else 3, size, size)
    fast_format(laid)
    fast_format(fast, images)
    batches = [images + k for k in range(_BATCHES)]
    pairs = (
        (lambda: _step(plain, images), lambda: _step(fast, images)),
        (lambda: _step(laid, images), lambda: _step(fast, images)),
        (lambda: _test(plain, images), lambda: _test(fast, images)),
        (lambda: _test(laid, images), lambda: _test(fast, images)),
        (lambda: [statistics(fast, [batch]) for batch in batches], lambda: statistics(fast, batches)),
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
