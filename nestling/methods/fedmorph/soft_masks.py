"""Soft masks: one number per unit of every axis, which says whether the unit is kept (FedMorph, §4).

A unit's mask multiplies what the unit puts out, so everything that an axis touches, skip connections included, agrees
by itself. Masks are laid on weights, along the dims by which layers *read* an axis: the unit is computed, and then not
listened to. So a unit that is off still gets a gradient that says what it would be worth. An axis that no layer reads
by a weight (queries against keys) is masked where it is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.dims import Dim, Leaf, Product, Sum, leaves
from nestling.cut import Plan
from nestling.cut.plan import kept_count

State = Mapping[str, Tensor]


def maskable(axes: AxisMap) -> dict[str, int]:
    """The axes that get a mask: those that a width cuts, so heads stay and get thinner. Classes never do."""
    return {name: size for name, size in axes.axes.items() if name not in axes.groups}


def initial(axes: AxisMap, ratio: float, generator: torch.Generator, literal: bool = False) -> dict[str, Tensor]:
    """Draw the mask variables v of every axis: a share `ratio` of them is above zero.

    They follow the logistic distribution of scale 1 around logit(ratio); `literal` takes the paper at its word and
    puts the mean at `ratio` itself, which keeps more than half of all units whatever the ratio is.
    """
    mean = ratio if literal else math.log(ratio / (1 - ratio)) if ratio < 1 else math.inf
    return {name: mean + logistic(size, generator) for name, size in maskable(axes).items()}


def logistic(size: int, generator: torch.Generator) -> Tensor:
    """Draw numbers of the standard logistic distribution, (size,)."""
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp_(1e-12, 1 - 1e-12)
    return torch.logit(uniform).float()


def kept(axes: AxisMap, scores: State, ratio: float = 1.0, key: str = "morph") -> Plan:
    """The plan that keeps units whose score is not below zero, the best of each axis at least.

    With a ratio below 1, only that share of them, the best ones: a smaller ratio's units are among a larger one's.

    >>> import nestling
    >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 2))
    >>> v = {"model.0": torch.tensor([0.5, -1.0, 2.0, 1.0])}
    >>> kept(axes, v).runs, kept(axes, v, 0.5).runs
    ({'model.0': ((0, 1), (2, 4))}, {'model.0': ((2, 4),)})
    """
    units = {}
    for name, size in maskable(axes).items():
        count = kept_count(ratio, max(1, int((scores[name] >= 0).sum())))
        if count < size:
            units[name] = scores[name].sort(descending=True, stable=True).indices[:count]
    return Plan(units, key=key)


@dataclass(frozen=True)
class Masks:
    """How masks of a model's axes are laid on its weights, and what they say of its size.

    Parameters
    ----------
    axes
        The axes of the model.
    parameters
        The names of its parameters.
    positions
        How often a weight is used in a forward pass, for sizes in multiply-accumulates; missing ones count nothing.
        None counts parameters.
    """

    axes: AxisMap
    parameters: frozenset[str]
    positions: Mapping[str, float] | None = None

    def laid_on(self, state: State, masks: State) -> dict[str, Tensor]:
        """Return the parameters with masks, axis → (size,), laid on: differentiable in both."""
        read = {leaf.name for name in self._own() for dim in self.axes.dims[name][1:] for leaf in leaves(dim)}
        written = {name: mask for name, mask in masks.items() if name not in read}
        result = {}
        for name in self._own():
            tensor = state[name]
            for place, dim in enumerate(self.axes.dims[name]):
                along = _along(dim, masks if place else written)
                if along is not None:
                    tensor = tensor * along.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1 - place))
            result[name] = tensor
        return result

    def size(self, masks: State) -> Tensor:
        """Return how large the masked model is: the sum over weights of the product of the units kept along each dim.

        >>> import nestling
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> axes = nestling.trace(net, torch.zeros(1, 2))
        >>> masks = Masks(axes, frozenset(axes.dims))
        >>> masks.size({"model.0": torch.ones(4)}), masks.size({"model.0": torch.tensor([1.0, 0, 0, 0])})
        (tensor(22.), tensor(7.))
        """
        total = torch.zeros(())
        for name in self._own():
            often = 1.0 if self.positions is None else self.positions.get(name, 0.0)
            if often:
                sizes = [_count(dim, masks) for dim in self.axes.dims[name]]
                total = total + often * reduce(lambda a, b: a * b, sizes, torch.ones(()))
        return total

    def _own(self) -> Iterator[str]:
        """The parameters, tied ones under their first name."""
        return (name for name in self.axes.dims if name in self.parameters and name not in self.axes.tied)


def _along(dim: Dim, masks: State) -> Tensor | None:
    """The masks of the axes in `dim` as one vector along it; None where it has none."""
    if not any(leaf.name in masks for leaf in leaves(dim)):
        return None
    if isinstance(dim, Leaf):
        return masks[dim.name]
    assert isinstance(dim, Product | Sum)
    found = [_along(part, masks) for part in dim.parts]
    parts = [torch.ones(part.size) if mask is None else mask for part, mask in zip(dim.parts, found, strict=True)]
    if isinstance(dim, Sum):
        return torch.cat(parts)
    return reduce(lambda a, b: (a.unsqueeze(-1) * b).reshape(-1), parts)


def _count(dim: Dim, masks: State) -> Tensor:
    """How many units are kept along `dim`."""
    if isinstance(dim, Leaf) and dim.name in masks:
        return masks[dim.name].sum()
    if isinstance(dim, Product):
        return reduce(lambda a, b: a * b, [_count(part, masks) for part in dim.parts])
    if isinstance(dim, Sum):
        return reduce(lambda a, b: a + b, [_count(part, masks) for part in dim.parts])
    return torch.tensor(float(dim.size))


@torch.no_grad()
def positions(model: nn.Module, example: Tensor) -> dict[str, float]:
    """How often each weight of convolutions and linear layers is used for one sample: parameter name → times."""
    found: dict[str, float] = {}

    def note(name: str, module: nn.Module, _: object, output: Tensor) -> None:
        units = output.shape[1] if isinstance(module, _CONVOLUTIONS) else output.shape[-1]
        found[name] = found.get(name, 0.0) + output[0].numel() / units

    hooks = [
        module.register_forward_hook(partial(note, f"{name}.weight".lstrip(".")))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _CONVOLUTIONS)
    ]
    training = model.training
    try:
        model.eval()(example)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found


_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
