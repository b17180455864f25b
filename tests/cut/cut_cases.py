"""What the tests of the cut share: small nets, random plans and fleets, and a slow, plain reference to compare with.

The reference never looks at `nestling.cut.slices`: it writes every index out, one by one.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling import AxisMap, Plan, Tally, extract
from nestling.axes.dims import Fixed, Leaf, Product, Sum
from nestling.nets import build, example, names

# Plans are drawn by seed, and a smaller seed is not a simpler plan: shrinking would only cost time.
LAWS = settings(deadline=None, derandomize=True, max_examples=4, database=None, phases=[Phase.explicit, Phase.generate])

# Narrow, and where a net is deep, shallow: what a stage is made of stays the same.
OPTIONS = {
    "mlp": {"widths": (6, 5), "size": 8},
    "cnn": {"widths": (4, 6, 6, 8)},
    "cnn1d": {"widths": (4, 6, 6, 8)},
    "lstm": {"embedding": 3, "widths": (6, 5), "vocabulary": 12},
    "preresnet18": {"widths": (4, 8, 8, 16), "depths": (1, 2, 1, 1)},
    "preresnet18-paper": {"widths": (4, 8, 8, 16), "learn_steps": True},
    "resnet8": {"widths": (4, 8, 8, 16)},
    "resnet18": {"widths": (4, 8, 8, 16)},
    "resnet34": {"widths": (4, 8, 8, 16), "depths": (1, 2, 1, 2)},
    "resnet56": {"widths": (4, 6, 8), "depths": (2, 2, 1)},
    "resnet110": {"widths": (4, 6, 8), "depths": (3, 1, 2)},
    "wide-resnet101-2": {"widths": (2, 4, 4, 6), "stem_width": 4, "depths": (1, 2, 2, 1)},
    "vgg16": {"widths": ((4, 4), (4, 6), (6,) * 3, (8,) * 3, (8,) * 3)},
    "vit-tiny": {"width": 12, "head_width": 4, "hidden": 10, "depth": 2},
    "vit-b16": {"width": 12, "heads": 2, "hidden": 10, "depth": 2, "size": 32},
    "transformer-mlm": {"width": 8, "head_width": 3, "hidden": 12, "vocabulary": 20, "depth": 2, "positions": 6},
    "transformer-nwp": {"width": 8, "head_width": 3, "hidden": 12, "vocabulary": 20, "depth": 2, "positions": 6},
}
# with several outputs, and blocks inside one another: tests/nets and tests/methods/test_depthfl.py
assert list(OPTIONS) == [name for name in names() if not name.endswith("-exits")]


class Through(nn.Module):
    """A few layers in a row, keeping only the first of what a layer gives (recurrent layers give more)."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


class Joined(nn.Module):
    """Two convolutions whose channels are put side by side, as in Inception and DenseNet."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3)
        self.norm, self.mix, self.head = nn.BatchNorm2d(9), nn.Conv2d(9, 6, 3, stride=2), nn.Linear(6 * 4, 3)

    def forward(self, x):
        x = self.norm(torch.cat([self.left(x), self.right(x)], 1)).relu()
        return self.head(self.mix(x).relu().flatten(1))


class TorchAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.attention = nn.Linear(5, 12), nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = self.enter(x)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class FusedAttention(nn.Module):
    """Queries, keys and values from one layer, parted by a view (as in timm) or by chunk (as in GPT-2)."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk, self.num_heads = chunk, 3
        self.enter, self.qkv, self.out = nn.Linear(5, 8), nn.Linear(8, 36), nn.Linear(12, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.enter(x)
        if self.chunk:
            q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        else:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(x + self.out(mixed.transpose(1, 2).flatten(2)))


class TiedLanguage(nn.Module):
    """The embedding is the head, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.token, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        return self.head(self.mix(self.token(ids)).relu())


class Step(nn.Module):
    """A residual block that nobody declared: found by what it does to the stream."""

    def __init__(self, width=8, hidden=6):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class GatedStep(nn.Module):
    """A residual block with two matrices of the same dims."""

    def __init__(self, width=8, hidden=6):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.up(x) * self.gate(x).sigmoid())


def shared_steps(kind=Step):
    """Three steps of which the first two share two of their matrices, as in ALBERT."""
    net = nn.Sequential(nn.Linear(5, 8), kind(), kind(), kind(), nn.Linear(8, 3))
    net[2].up.weight, net[2].down.weight = net[1].up.weight, net[1].down.weight
    return net


def _images(*shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))


TOYS = {
    "flatten": lambda: (
        nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 7), nn.ReLU(), nn.Linear(7, 3)),
        _images(3, 5, 5),
    ),
    "grouped": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 3, 1)),
        _images(3, 5, 5),
    ),
    "depthwise": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 1)),
        _images(3, 5, 5),
    ),
    "groupnorm": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 3, 1)),
        _images(3, 5, 5),
    ),
    "joined": lambda: (Joined(), _images(3, 8, 8)),
    "lstm2": lambda: (
        Through(nn.Linear(4, 6), nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), nn.Linear(10, 3)),
        _images(3, 4),
    ),
    "gru": lambda: (Through(nn.GRU(4, 7, batch_first=True), nn.Linear(7, 3)), _images(3, 4)),
    "attention": lambda: (TorchAttention(), _images(3, 5)),
    "fused-view": lambda: (FusedAttention(chunk=False), _images(3, 5)),
    "fused-chunk": lambda: (FusedAttention(chunk=True), _images(3, 5)),
    "tied": lambda: (TiedLanguage(), torch.tensor([[1, 5, 10], [0, 2, 2]])),
    "steps": lambda: (nn.Sequential(nn.Linear(5, 8), Step(), Step(), Step(), nn.Linear(8, 3)), _images(5)),
}
NETS = [*OPTIONS, *TOYS]
RESIDUAL = [name for name in OPTIONS if "resnet" in name or "vit" in name or "transformer" in name]


@dataclass(frozen=True)
class Case:
    """One net with its map; shared by tests, so none may change it."""

    name: str
    model: nn.Module
    axes: AxisMap
    example: torch.Tensor


@functools.cache
def case(name: str) -> Case:
    """The net called `name` in eval mode, its weights and statistics away from where they start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in TOYS:
            model, x = TOYS[name]()
        else:
            model = build(name, **OPTIONS[name])
            (x,) = example(name, **OPTIONS[name])
            x = x[:, :4] if name == "lstm" else x[..., :32, :32]  # four letters and a small image say as much
    model.load_state_dict(fill(model.state_dict()))
    axes = nestling.trace(model, x)
    return Case(name, model.eval(), axes, x)


def fill(state, seed=1, dtype=None):
    """Random values of the shapes of `state`: of all sizes, positive where variances are, counters included."""
    source = torch.Generator().manual_seed(seed)
    filled = {}
    for name, old in state.items():
        if not old.is_floating_point():
            filled[name] = torch.randint(100, old.shape, generator=source).to(old.dtype)
            continue
        new = torch.randn(old.shape, generator=source, dtype=torch.float64) * math.prod(old.shape[1:]) ** -0.5
        new = new.abs() + 0.5 if name.endswith("running_var") else new
        filled[name] = new.to(dtype or old.dtype)
    for name, first in ties(state).items():
        filled[name] = filled[first]
    return filled


def ties(state):
    """Names of one tensor more than once: name → first name."""
    first, tied = {}, {}
    for name, tensor in state.items():
        if tensor.numel() and tensor.data_ptr() in first and first[tensor.data_ptr()][1] == tensor.shape:
            tied[name] = first[tensor.data_ptr()][0]
        first.setdefault(tensor.data_ptr(), (name, tensor.shape))
    return tied


def state_of(it: Case, dtype=torch.float32, seed=1):
    return fill(it.model.state_dict(), seed, dtype)


# ---- random plans and fleets


def units(random_, size, kind):
    """Some of the units of an axis."""
    count = random_.randint(1, size)
    start = random_.randrange(size)
    match kind:
        case "prefix":
            return list(range(count))
        case "window":  # it wraps
            return [(start + k) % size for k in range(count)]
        case "one":
            return [start]
        case "subset":
            return random_.sample(range(size), count)
    raise AssertionError(kind)


KINDS = ("prefix", "window", "one", "subset")


def random_plan(axes: AxisMap, seed: int, kind: str = "mixed", blocks: bool = True) -> Plan:
    """A plan of one kind, or of every axis its own kind; some axes stay whole, some blocks go."""
    random_ = random.Random(f"{seed}/{kind}")
    kept, keep = {}, None
    if kind != "full":
        for name, size in axes.axes.items():
            if kind != "mixed" or random_.random() < 0.9:
                kept[name] = units(random_, size, random_.choice(KINDS) if kind == "mixed" else kind)
        if blocks and axes.blocks and random_.random() < 0.6:
            keep = [block for block in axes.blocks if random_.random() < 0.6]
    return Plan(kept, keep)


SEEDS = st.integers(0, 2**20)
PLANS = st.tuples(SEEDS, st.sampled_from(("full", "mixed", *KINDS)))
WEIGHTS = st.one_of(
    st.sampled_from([1.0, 1, 3, 1e-3, 1e6, 0.1, 1 / 3, 600]), st.floats(1e-3, 1e6, allow_nan=False, exclude_min=True)
)
FLEETS = st.lists(st.tuples(PLANS, WEIGHTS), min_size=1, max_size=12)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def fleet_of(axes, drawn):
    """Plans and weights of a drawn fleet."""
    return [(random_plan(axes, *which), weight) for which, weight in drawn]


def large_plans(axes, count):
    """Different plans that each keep nearly everything: together far more than any merge would keep apart."""
    plans = []
    for k in range(count):
        random_ = random.Random(k)
        plans.append(
            Plan({name: random_.sample(range(size), max(1, size - 1)) for name, size in axes.axes.items()}, key=f"p{k}")
        )
    return plans


# ---- the reference


def kept_of(plan: Plan):
    return {name: [i for start, stop in runs for i in range(start, stop)] for name, runs in plan.runs.items()}


def places(dim, kept):
    """The indices along `dim` that stay, written out."""
    if isinstance(dim, Fixed):
        return list(range(dim.size))
    if isinstance(dim, Leaf):
        return sorted(kept.get(dim.name, range(dim.size)))
    result = []
    if isinstance(dim, Sum):
        at = 0
        for part in dim.parts:
            result += [at + i for i in places(part, kept)]
            at += part.size
        return result
    assert isinstance(dim, Product)
    result = [0]
    for part in dim.parts:
        result = [outer * part.size + inner for outer in result for inner in places(part, kept)]
    return result


def dropped_names(axes, plan):
    gone = set()
    for block, its in axes.blocks.items():
        if plan.blocks is not None and block not in plan.blocks:
            gone |= set(its)
    return gone


def reference_extract(axes, plan, state):
    """The state of a sub-model, by plain indexing."""
    gone, kept = dropped_names(axes, plan), kept_of(plan)
    small = {}
    for name, dims in axes.dims.items():
        if name not in gone:
            tensor = state[name]
            for place, dim in enumerate(dims):
                tensor = tensor.movedim(place, 0)[places(dim, kept)].movedim(0, place)
            small[name] = tensor
    return small


def reference_weights(axes, clients):
    """How much weight every coordinate of every tensor gets; `clients` are (plan, weight, touched or None)."""
    weights = {name: np.zeros(dims.shape) for name, dims in axes.dims.items()}
    for plan, weight, touched in clients:
        gone, kept = dropped_names(axes, plan), kept_of(plan) | (kept_of(touched) if touched else {})
        for name, dims in axes.dims.items():
            if name not in gone:
                weights[name][_grid([places(dim, kept) for dim in dims])] += weight
    return weights


def _grid(indices):
    return np.ix_(*indices) if indices else ()


def reference_merge(axes, state, clients):
    """Merge (state, plan, weight, touched or None) densely in float64; the dtype of the result is the state's."""
    weights = reference_weights(axes, [client[1:] for client in clients])
    totals = {name: np.zeros(dims.shape) for name, dims in axes.dims.items()}
    largest = {}
    for update, plan, weight, touched in clients:
        gone, kept = dropped_names(axes, plan), kept_of(plan)
        part = kept | (kept_of(touched) if touched else {})
        for name, dims in axes.dims.items():
            if name in gone:
                continue
            if not state[name].is_floating_point():
                largest[name] = torch.maximum(largest.get(name, update[name]), update[name])
                continue
            inside = [[places(dim, kept).index(i) for i in places(dim, part)] for dim in dims]
            values = update[name].detach().double().numpy()[_grid(inside)]
            totals[name][_grid([places(dim, part) for dim in dims])] += weight * values
    merged = {}
    for name, old in state.items():
        if not old.is_floating_point():
            merged[name] = largest.get(name, old)
            continue
        with np.errstate(invalid="ignore"):
            mean = totals[name] / weights[name]
        mean = np.where(weights[name] > 0, mean, old.detach().double().numpy())
        merged[name] = torch.as_tensor(mean).to(old.dtype)
    return merged


# ---- looking at states


def same(one, other):
    """Return None if two states are equal bit for bit, dtypes included, or the first difference."""
    if set(one) != set(other):
        return f"names: {set(one) ^ set(other)}"
    for name in one:
        if one[name].dtype != other[name].dtype or one[name].shape != other[name].shape:
            return f"{name}: {one[name].dtype} {tuple(one[name].shape)}, {other[name].dtype} {tuple(other[name].shape)}"
        if not torch.equal(one[name], other[name]):
            worst = (one[name].double() - other[name].double()).abs().max()
            return f"{name}: differs by up to {worst}"
    return None


def copied(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def constant(state, value):
    return {
        name: torch.full_like(tensor, value) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in state.items()
    }


def noisy(state, seed):
    """The state as if trained: every value moved."""
    source = torch.Generator().manual_seed(seed)
    return {
        name: (tensor + torch.randn(tensor.shape, generator=source, dtype=torch.float64).to(tensor.dtype)).detach()
        if tensor.is_floating_point()
        else tensor + int(torch.randint(50, (), generator=source))
        for name, tensor in state.items()
    }


def addresses(state):
    """Where the values of a state live, so that sharing shows."""
    return {tensor.untyped_storage().data_ptr() for tensor in state.values() if tensor.numel()}


# ---- merges

ULP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-7}


def updates_of(axes, state, fleet, touch=None):
    """What the clients of a fleet return: (state, plan, weight, touched)."""
    updates = []
    for k, (plan, weight) in enumerate(fleet):
        update = noisy(extract(axes, plan, state), k)
        for name, first in axes.tied.items():
            if name in update:
                update[name] = update[first]
        updates.append((update, plan, weight, touch(plan, k) if touch else None))
    return updates


def tallied(axes, state, updates, tally=None):
    tally = Tally(axes, state) if tally is None else tally
    for update, plan, weight, touched in updates:
        tally.add(update, plan, weight, touched)
    return tally


def assert_close(actual, wanted, dtype, ulps=4):
    """Equal up to a few units in the last place of the largest values that were averaged."""
    assert set(actual) == set(wanted)
    for name, tensor in actual.items():
        assert tensor.dtype == wanted[name].dtype
        scale = max(4.0, float(wanted[name].double().abs().max())) if tensor.numel() else 1.0
        tolerance = ulps * ULP[dtype] * scale if tensor.is_floating_point() else 0
        torch.testing.assert_close(
            tensor.double(),
            wanted[name].double(),
            rtol=0,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def some_units(axes, plan, seed):
    """A part of what `plan` keeps: of some free axes and of some frozen ones (classes, words, positions)."""
    random_ = random.Random(seed)
    kept, touched = kept_of(plan), {}
    for name, axis in axes.table.items():
        if random_.random() < 0.5:
            have = kept.get(name, list(range(axis.size)))
            touched[name] = [have[k] for k in units(random_, len(have), random_.choice(("prefix", "window", "subset")))]
    return Plan(touched)
