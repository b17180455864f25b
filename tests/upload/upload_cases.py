"""What the tests of uploads share: changes of every kind, and a slow, plain Top-K to compare with."""

import math

import torch
from hypothesis import settings
from hypothesis import strategies as st

from nestling.upload import Upload
from nestling.upload.message import _FORMATS, _checksum

LAWS = settings(deadline=None, derandomize=True, max_examples=60, database=None)
FORMATS = list(_FORMATS)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
OTHERS = [torch.int64, torch.uint8, torch.bool, torch.complex64]
SHAPES = st.sampled_from([(), (0,), (3, 0, 2), (1,), (7,), (8,), (5, 13), (4, 3, 3, 3), (40, 9)])
KINDS = ["normal", "heavy", "sparse", "equal", "zero", "few", "tiny", "huge"]


def tensor_of(shape, dtype, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, dtype=torch.float64, generator=generator)
    chance = torch.rand(shape, dtype=torch.float64, generator=generator)
    if dtype == torch.bool:
        return chance < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return (chance * 250).to(dtype)
    real = dtype.to_real() if dtype.is_complex else dtype
    limits = torch.finfo(real)
    tensor_values = {
        "normal": normal,
        "heavy": normal * chance**6 * 10,
        "sparse": normal * (chance < 0.05),
        "equal": 0.37 * normal.sign(),
        "zero": normal * 0.0,  # of both signs
        "few": (normal * 2).round() / 4,  # many of the same size
        "tiny": normal * limits.tiny,  # most below the normal range
        "huge": (normal.sign() * limits.max * (1 - chance / 3)).clamp(limits.min, limits.max),
    }[kind]
    return tensor_values.to(dtype)


@st.composite
def changes(draw, dtypes=(*FLOATS, *OTHERS), kinds=KINDS, most=4):
    return {
        f"layer{k}": tensor_of(
            draw(SHAPES), draw(st.sampled_from(dtypes)), draw(st.sampled_from(kinds)), draw(st.integers(0, 10**6))
        )
        for k in range(draw(st.integers(0, most)))
    }


@st.composite
def settings_of(draw, formats=FORMATS):
    return Upload(
        format=draw(st.sampled_from(formats)),
        fraction=draw(st.sampled_from([0.01, 0.1, 0.25, 0.9, 1.0])),
        scope=draw(st.sampled_from(["global", "tensor"])),
        rounding=draw(st.sampled_from(["nearest", "stochastic"])),
        feedback=draw(st.booleans()),
    )


def plain_topk(change, share, scope):
    """Which values stay, by sorting all of them: name → set of places."""
    names = [name for name in sorted(change) if change[name].is_floating_point()]
    everything = {name: [(name, k, abs(v)) for k, v in enumerate(change[name].flatten().tolist())] for name in names}
    groups = list(everything.values())
    if scope == "global":
        groups = [[value for group in groups for value in group]]
    kept = {name: set() for name in names}
    for group in groups:
        count = math.ceil(round(share * len(group), 9))
        for name, place, size in sorted(group, key=lambda value: -value[2])[
            :count
        ]:  # sorting keeps the order of equals
            if size:
                kept[name].add(place)
    return kept


def bits(tensor):
    """The bits of a tensor, for comparisons to the last one."""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.numpy().tobytes() if flat.dtype != torch.bfloat16 else flat.view(torch.int16).numpy().tobytes()


def sealed(head, body, like):
    """A message with the right checksum, whatever is in it."""
    return head + _checksum(head, body, like) + body
