"""What it means for a cut to be right, told without the package's own index code.

Two references. *Zeroed*: a sub-model computes what the whole model computes once every weight outside the kept units
is zero; exact wherever no norm, softmax or mean runs over a cut axis. *Reordered*: put the units of every axis into
another order, keep the same units, and the sub-model computes the same; true for every model, norms included.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

import nestling
from nestling.axes.dims import Fixed, Leaf, Sum

# What the models of the zoo are run on.
VECTORS = (torch.linspace(-1, 1, 8).view(2, 4),)
IMAGES = (torch.linspace(-1, 1, 2 * 3 * 6 * 6).sin().view(2, 3, 6, 6),)
SIGNALS = (torch.linspace(-1, 1, 2 * 3 * 9).sin().view(2, 3, 9),)
VOLUMES = (torch.linspace(-1, 1, 2 * 3 * 64).sin().view(2, 3, 4, 4, 4),)
TOKENS = (torch.linspace(-2, 2, 2 * 5 * 4).sin().view(2, 5, 4),)
WORDS = (torch.tensor([[1, 4, 2, 0], [3, 3, 5, 6]]),)


@dataclass(frozen=True)
class Case:
    """A model with an example, the axes that it must be found to have, and how its sub-models are proved right."""

    build: Callable[[], nn.Module]
    example: tuple[Any, ...]
    axes: dict[str, int] | None  # None: which names it gets is not the point
    zeroed: bool = True  # else `reordered`: something runs over a cut axis
    groups: bool = True  # heads and groups may be cut too
    kwexample: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def traced(self):
        """The model and its map, made once: nothing here may change either."""
        torch.manual_seed(0)
        model = self.build()
        return model, nestling.trace(model, *self.example, **self.kwexample)

    def __iter__(self):
        """Unpack as (model, axes, example, kwexample)."""
        return iter((*self.traced, self.example, self.kwexample))


class Net(nn.Module):
    """A module told in one line: its members by name and its forward as a function of them and the inputs."""

    def __init__(self, run: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.run = run
        for name, member in members.items():
            if isinstance(member, Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def places(dim, order):
    """The places along `dim` when the units of every leaf are listed as in `order` (all of them by default)."""
    if isinstance(dim, Fixed):
        return list(range(dim.size))
    if isinstance(dim, Leaf):
        return list(order.get(dim.name, range(dim.size)))
    if isinstance(dim, Sum):
        starts = [sum(part.size for part in dim.parts[:k]) for k in range(len(dim.parts))]
        return [at + place for at, part in zip(starts, dim.parts, strict=True) for place in places(part, order)]
    result = [0]
    for part in dim.parts:
        result = [place * part.size + inner for place in result for inner in places(part, order)]
    return result


def reordered(axes, state, order):
    """The state with the units of every axis in another order."""
    result = {}
    for name in state:
        result[name] = state[name]
        for k, dim in enumerate(axes.dims[name]):
            result[name] = result[name].index_select(k, torch.tensor(places(dim, order), dtype=torch.long))
    return result


def zeroed(axes, state, kept):
    """The state with zero outside the kept units; tensors that no cut reaches stay."""
    result = {}
    for name, tensor in state.items():
        mask = torch.ones_like(tensor, dtype=torch.bool)
        for k, dim in enumerate(axes.dims[name]):
            inside = torch.zeros(dim.size, dtype=torch.bool)
            inside[places(dim, kept)] = True
            mask &= inside.view([-1 if j == k else 1 for j in range(tensor.dim())])
        result[name] = torch.where(mask, tensor, torch.zeros_like(tensor))
    return result


def some_units(axes, seed, groups=True, least=1):
    """A random set of units of every axis, each of its own size."""
    draw = random.Random(seed)
    kept = {}
    for name, size in axes.axes.items():
        if groups or name not in axes.groups:
            kept[name] = sorted(draw.sample(range(size), draw.randint(min(least, size), size)))
    return kept


def double(value):
    return tree_map_only(Tensor, lambda given: given.double() if given.is_floating_point() else given, value)


def noisy(model):
    """A copy in double precision and eval mode, with random values of a fair size everywhere."""
    twin = copy.deepcopy(model).double().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in [*twin.parameters(), *twin.buffers()]:
            if tensor.is_floating_point() and tensor.numel():
                if tensor.dim() < 2:
                    tensor.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)
                else:
                    tensor.copy_(torch.randn(tensor.shape, generator=draw) * (tensor.numel() / len(tensor)) ** -0.5)
    return twin


def with_state(model, state):
    twin = copy.deepcopy(model)
    twin.load_state_dict(state)
    return twin


def outputs(model, example, kwexample):
    """The floating-point outputs; of a result with logits, the logits, as `trace` promises."""
    result = model(*example, **kwexample)
    actual = tree_leaves(getattr(result, "logits", result))
    return [out for out in actual if isinstance(out, Tensor) and out.is_floating_point()]


def assert_same(ours, theirs, tolerance=1e-7):
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_like_zeroed(model, axes, kept, example, kwexample):
    """The sub-model of `kept` is the whole model without the other units."""
    whole = noisy(model)
    small = nestling.submodel(whole, axes, nestling.Plan(kept))
    example, kwexample = double(example), double(kwexample)
    reference = with_state(whole, zeroed(axes, whole.state_dict(), kept))
    with torch.no_grad():
        assert_same(outputs(small, example, kwexample), outputs(reference, example, kwexample))


def assert_order_is_free(model, axes, kept, example, kwexample, seed=0, tolerance=1e-7):
    """The sub-model of `kept` does not depend on where in the whole model its units stood."""
    whole = noisy(model)
    draw = random.Random(seed)
    order = {name: draw.sample(range(size), size) for name, size in axes.axes.items()}
    moved = with_state(whole, reordered(axes, whole.state_dict(), order))
    there = {name: [place for place, unit in enumerate(order[name]) if unit in units] for name, units in kept.items()}
    example, kwexample = double(example), double(kwexample)
    with torch.no_grad():
        full = outputs(whole, example, kwexample)
        one = outputs(nestling.submodel(whole, axes, nestling.Plan(kept)), example, kwexample)
        two = outputs(nestling.submodel(moved, axes, nestling.Plan(there)), example, kwexample)
    assert_same(one, two, tolerance)
    assert [out.shape for out in one] == [out.shape for out in full]


def assert_whole_plan(model, axes, example, kwexample):
    """P3: the plan that keeps everything computes the same function, bit for bit."""
    whole = noisy(model)
    same = nestling.submodel(whole, axes, nestling.plan(axes))
    example, kwexample = double(example), double(kwexample)
    with torch.no_grad():
        ours, theirs = outputs(same, example, kwexample), outputs(whole, example, kwexample)
    assert len(ours) == len(theirs) > 0
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def assert_identity(model, axes, plan):
    """P1: cut out, not trained, merged back: the whole model bit for bit."""
    state = model.state_dict()
    tally = nestling.Tally(axes, state)
    tally.add(nestling.extract(axes, plan, state), plan)
    merged = tally.value()
    assert merged.keys() == state.keys()
    for name, tensor in state.items():
        assert merged[name].dtype == tensor.dtype
        assert torch.equal(merged[name], tensor), name


def assert_trains(model, axes, plan, example, kwexample):
    """One step of the sub-model: what has a gradient in the whole model has a finite one here."""
    small = nestling.submodel(model, axes, plan).train()
    names = {}
    for net in (copy.deepcopy(model).train(), small):
        net.zero_grad()
        sum(out.float().square().mean() for out in outputs(net, example, kwexample)).backward()
        names[net] = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    whole, part = names.values()
    assert whole.keys() == part.keys()
    assert part
    assert all(torch.isfinite(grad).all() for grad in part.values())
    assert all(grad.shape == small.get_parameter(name).shape for name, grad in part.items())
    torch.optim.SGD(small.parameters(), lr=1e-3).step()
    assert nestling.extract(axes, plan, model.state_dict()).keys() == small.state_dict().keys()


def rewired(axes, table=None, **dims):
    """A map changed by hand: other dims for some tensors (``__`` stands for a dot), further axes in the table."""
    changed = {name.replace("__", "."): value for name, value in dims.items()}
    return replace(axes, table={**axes.table, **(table or {})}, dims={**axes.dims, **changed})


def one_sentence(error):
    """Whether an error says what it says in one line, with a reason to read it."""
    text = str(error)
    return bool(text) and "\n" not in text and "Traceback" not in text
