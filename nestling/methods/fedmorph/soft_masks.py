"""Soft masks: one number per unit of every axis, which decides whether the unit is kept (FedMorph, §4.1).

A mask multiplies the output of its unit. There is one mask per axis, so all layers that share an axis, skip connections
included, keep the same units (§4.2). Masks are multiplied into weights, along the dims by which layers *read* an axis:
a masked unit is computed, and then ignored. So it still gets a gradient that measures what it would contribute. An axis
that no layer reads by a weight (queries against keys) is masked where it is written.
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
from nestling.cut.extract import State
from nestling.cut.plan import kept_count


def maskable(axes: AxisMap) -> dict[str, int]:
    """Return the axes that have masks, with their sizes: those that a width cuts, so never heads or classes."""
    return {name: size for name, size in axes.axes.items() if name not in axes.groups}


def initial(axes: AxisMap, ratio: float, generator: torch.Generator, literal: bool = False) -> dict[str, Tensor]:
    """Draw the mask variables v of every axis (§5.1): a share `ratio` of them is above zero.

    They follow the logistic distribution of scale 1 around logit(ratio). With `literal` its mean is `ratio` itself, as
    the paper says, which keeps more than half of all units whatever the ratio is.
    """
    mean = ratio if literal else math.log(ratio / (1 - ratio)) if ratio < 1 else math.inf
    return {name: mean + logistic(size, generator) for name, size in maskable(axes).items()}


def logistic(size: int, generator: torch.Generator) -> Tensor:
    """Draw numbers of the standard logistic distribution, (size,)."""
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp_(1e-12, 1 - 1e-12)
    return torch.logit(uniform).float()


def kept(axes: AxisMap, scores: State, ratio: float = 1.0, key: str = "morph") -> Plan:
    """Return the plan that keeps units whose score is not below zero, and at least the highest of each axis.

    With a ratio below 1, only that share of them, the highest: the units of smaller ratios are nested in larger ones.

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
    """Applies masks of a model's axes to its weights, and measures the size of the masked model.

    Parameters
    ----------
    axes
        The axes of the model.
    parameters
        The names of its parameters.
    positions
        How often each weight is used in a forward pass, for sizes in multiply-accumulates; others count zero. None for
        sizes in parameters.
    """

    axes: AxisMap
    parameters: frozenset[str]
    positions: Mapping[str, float] | None = None

    def apply(self, state: State, masks: State) -> dict[str, Tensor]:
        """Return the parameters multiplied by masks, axis → (size,): differentiable in both."""
        read = {leaf.name for name in self._own() for dim in self.axes.dims[name][1:] for leaf in leaves(dim)}
        written = {name: mask for name, mask in masks.items() if name not in read}
        result = {}
        for name in self._own():
            tensor = state[name]
            for index, dim in enumerate(self.axes.dims[name]):
                mask = _mask_along(dim, masks if index else written)
                if mask is not None:
                    tensor = tensor * mask.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1 - index))
            result[name] = tensor
        return result

    def size(self, masks: State) -> Tensor:
        """Return the size L^c of the masked model (Eq. 7): the sum over weights of the product of its dims' kept units.

        >>> import nestling
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> axes = nestling.trace(net, torch.zeros(1, 2))
        >>> masks = Masks(axes, frozenset(axes.dims))
        >>> masks.size({"model.0": torch.ones(4)}), masks.size({"model.0": torch.tensor([1.0, 0, 0, 0])})
        (tensor(22.), tensor(7.))
        """
        total = torch.zeros(())
        for name in self._own():
            uses = 1.0 if self.positions is None else self.positions.get(name, 0.0)
            if uses:
                sizes = [_count(dim, masks) for dim in self.axes.dims[name]]
                total = total + uses * reduce(lambda a, b: a * b, sizes, torch.ones(()))
        return total

    def _own(self) -> Iterator[str]:
        """Return the names of parameters, of tied ones only the first."""
        return (name for name in self.axes.dims if name in self.parameters and name not in self.axes.tied)


def _mask_along(dim: Dim, masks: State) -> Tensor | None:
    """Return the masks of the axes in `dim` as one vector along it; None if it has none."""
    if not any(leaf.name in masks for leaf in leaves(dim)):
        return None
    if isinstance(dim, Leaf):
        return masks[dim.name]
    assert isinstance(dim, Product | Sum)
    along = [_mask_along(part, masks) for part in dim.parts]
    parts = [torch.ones(part.size) if mask is None else mask for part, mask in zip(dim.parts, along, strict=True)]
    if isinstance(dim, Sum):
        return torch.cat(parts)
    return reduce(lambda a, b: (a.unsqueeze(-1) * b).reshape(-1), parts)


def _count(dim: Dim, masks: State) -> Tensor:
    """Return the number of units kept along `dim`."""
    if isinstance(dim, Leaf) and dim.name in masks:
        return masks[dim.name].sum()
    if isinstance(dim, Product):
        return reduce(lambda a, b: a * b, [_count(part, masks) for part in dim.parts])
    if isinstance(dim, Sum):
        return reduce(lambda a, b: a + b, [_count(part, masks) for part in dim.parts])
    return torch.tensor(float(dim.size))


@torch.no_grad()
def positions(model: nn.Module, example: Tensor) -> dict[str, float]:
    """Return how often each weight of convolutions and linear layers is used for one sample: parameter name → uses."""
    uses: dict[str, float] = {}

    def count(name: str, module: nn.Module, _: object, output: Tensor) -> None:
        units = output.shape[1] if isinstance(module, _CONVOLUTIONS) else output.shape[-1]
        uses[name] = uses.get(name, 0.0) + output[0].numel() / units

    hooks = [
        module.register_forward_hook(partial(count, f"{name}.weight".lstrip(".")))
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
    return uses


_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
