"""`check`: the proof that an axis map is right for a model.

Units of an axis are interchangeable: if they are permuted wherever the axis appears, the model must compute the same.
This is tested on random weights. Then smaller models are built, run and traced again: their axes must be those of the
whole model, or else some size is hard-coded where cutting cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.compare import difference, prime_sizes
from nestling.axes.dims import Dim, Fixed, Leaf, Product, leaves
from nestling.axes.shapes import outputs_of
from nestling.axes.shrink import shrunk
from nestling.axes.skeleton import copy_with
from nestling.axes.trace import find_axes
from nestling.cut import Plan, plan, submodel
from nestling.draws import drawing
from nestling.errors import AxisError, first_line
from nestling.safe_kernels import SafeKernels
from nestling.torch_private import tree_map_only


@dataclass(frozen=True)
class Row:
    """One result: of an axis, a frozen axis or a sub-model."""

    kind: str
    name: str
    size: int
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The result of `check`.

    Attributes
    ----------
    rows
        One `Row` per axis, frozen axis and sub-model.
    coverage
        The share of the model's parameters that are in tensors that a width cut reduces.
    """

    rows: list[Row]
    coverage: float

    @property
    def ok(self) -> bool:
        """Whether no row failed."""
        return all(row.ok for row in self.rows)

    def raise_if_bad(self) -> None:
        """Raise `AxisError` with the first failed row, if any."""
        for row in self.rows:
            if not row.ok:
                raise AxisError(f"{row.kind} {row.name!r}: {row.note}")


def check(model: nn.Module, axes: AxisMap, *example: Any, **kwexample: Any) -> Report:
    """Prove that cutting `model` along `axes` is correct, or report where it is not.

    Runs a copy of the model with random weights a few times on `example`, in eval mode.

    >>> import nestling
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> report = check(net, axes, torch.randn(3, 4))
    >>> report.ok, round(report.coverage, 2)
    (True, 0.97)
    """
    rows: list[Row] = []
    with drawing(torch.Generator().manual_seed(0)), torch.no_grad():
        subject = _Subject(model, example, kwexample)
        bad = _permutations(subject, axes)
        submodels = list(_submodels(model, axes, subject))
    for name, size in axes.axes.items():
        note = bad.get(name, f"in {len(axes.uses(name))} tensors")
        rows.append(Row("axis", name, size, name not in bad, note))
    for name, why in axes.frozen.items():
        rows.append(Row("frozen", name, axes.table[name].size, True, why))
    return Report(rows + submodels, _coverage(model, axes))


class _Subject:
    """The model with random weights, in double precision unless its code requires its own.

    The tolerance allows for norms that always compute in single precision; a wrong axis changes outputs by their own
    magnitude.
    """

    def __init__(self, model: nn.Module, example: tuple[Any, ...], kwexample: dict[str, Any]) -> None:
        for dtype, self.tolerance in ((torch.float64, 1e-5), (None, 2e-3)):

            def cast(given: Tensor, dtype: torch.dtype | None = dtype) -> Tensor:
                return given.to(dtype) if dtype is not None and given.is_floating_point() else given

            def without_constants(given: Tensor, cast: Callable[[Tensor], Tensor] = cast) -> Tensor:
                # an example of zeros, which users often give, would hide errors
                plain = given.is_floating_point() and given.numel() > 1 and bool((given == given.flatten()[0]).all())
                return cast(torch.randn_like(given) if plain else given)

            self.model = copy_with(model, lambda _name, old, cast=cast: cast(_random(old))).eval()  # type: ignore[misc]
            self.example, self.kwexample = tree_map_only(Tensor, without_constants, (example, kwexample))
            try:
                self.output = self.run(self.model)
            except Exception as problem:
                if dtype is None:
                    raise AxisError(
                        f"{type(model).__name__} could not be run on the example: {first_line(problem)}"
                    ) from problem
            else:
                return

    @cached_property
    def axes(self) -> AxisMap:
        """The traced axes, without declarations by hand."""
        return find_axes(self.model, self.example, self.kwexample)

    def run(self, model: nn.Module) -> list[Tensor]:
        """Return the floating-point outputs of `model`."""
        with SafeKernels():  # sub-models are also trained for a step
            return [out for out in outputs_of(model(*self.example, **self.kwexample)) if out.is_floating_point()]

    def differs(self, outputs: list[Tensor]) -> bool:
        """Return whether `outputs` differ from those of the original model."""
        for new, old in zip(outputs, self.output, strict=True):
            same = (new == old) | (new.isnan() & old.isnan())
            # relative to each value and to the median: masked outputs may be huge, or infinite
            usual = old[old.isfinite()].abs().median() if bool(old.isfinite().any()) else torch.ones(())
            near = (new - old).abs() <= self.tolerance * (old.abs().nan_to_num(posinf=0.0) + usual)
            if not bool((same | near).all()):
                return True
        return False


def _random(old: Tensor) -> Tensor:
    """Return random values in the shape of `old` that preserve the magnitude of signals: all different, none zero."""
    if not old.is_floating_point():
        return old.to("cpu") if not old.is_meta else torch.zeros_like(old, device="cpu")
    new = torch.empty(old.shape, dtype=old.dtype if old.element_size() >= 4 else torch.float32)
    if old.dim() < 2:
        return new.uniform_(0.5, 1.5)
    return new.normal_(std=(old.numel() / len(old)) ** -0.5)


def _permutations(subject: _Subject, axes: AxisMap) -> dict[str, str]:
    """Return the axes whose units are not interchangeable, with the reason."""
    shuffle = {name: torch.randperm(size) for name, size in axes.axes.items()}
    if not subject.differs(subject.run(_permuted(subject.model, axes, shuffle))):
        # check that the test can fail: if one tensor only is permuted, the output must change
        if subject.differs(subject.run(_permuted(subject.model, axes, shuffle, first_only=True))):
            return {}
        return dict.fromkeys(shuffle, "the output does not depend on it, so nothing could be proved")
    return {
        name: "permuting its units everywhere changes what the model computes"
        for name in shuffle
        if subject.differs(subject.run(_permuted(subject.model, axes, {name: shuffle[name]})))
    }


def _permuted(model: nn.Module, axes: AxisMap, shuffle: Mapping[str, Tensor], first_only: bool = False) -> nn.Module:
    permuted: set[str] = set()

    def swap(name: str, old: Tensor) -> Tensor:
        for place, dim in enumerate(axes.dims.get(name, ())):
            names = {leaf.name for leaf in leaves(dim)} & set(shuffle)
            if names and not (first_only and names & permuted):
                old = old.index_select(place, _order(dim, shuffle))
                permuted.update(names)
        return old

    return copy_with(model, swap)


def _order(dim: Dim, shuffle: Mapping[str, Tensor]) -> Tensor:
    """Return the indices along `dim` with every named axis in its new order."""
    if isinstance(dim, Fixed):
        return torch.arange(dim.size)
    if isinstance(dim, Leaf):
        return shuffle.get(dim.name, torch.arange(dim.size))
    orders = [_order(part, shuffle) for part in dim.parts]
    if isinstance(dim, Product):
        index = orders[0]
        for part, order in zip(dim.parts[1:], orders[1:], strict=True):
            index = (index[:, None] * part.size + order).flatten()
        return index
    starts = [sum(part.size for part in dim.parts[:k]) for k in range(len(dim.parts))]
    return torch.cat([order + start for order, start in zip(orders, starts, strict=True)])


def _submodels(model: nn.Module, axes: AxisMap, subject: _Subject) -> Iterator[Row]:
    """Build and train the smallest sub-model and others, and compare their axes with those of the whole model."""
    plans = {
        "smallest": plan(axes, width=1e-9, key="smallest"),
        "half": plan(axes, width=0.5, key="half"),
        "three quarters": plan(axes, width=0.75, key="three-quarters"),
    }
    if axes.blocks:
        plans["every second block"] = plan(axes, blocks=list(axes.blocks)[::2], key="every-second-block")
    for name, small_plan in plans.items():
        note = ""
        try:
            small = submodel(subject.model, axes, small_plan)
            with torch.enable_grad():
                outputs = subject.run(small)
                sum((out.sum() for out in outputs if out.requires_grad), torch.zeros(())).backward()
            if [out.shape for out in outputs] != [out.shape for out in subject.output]:
                note = "it gives outputs of another shape than the whole model"
            else:
                note = _same_axes(small.train(model.training), axes, small_plan, subject)
        except Exception as problem:
            note = f"it cannot be built and trained: {first_line(problem)}"
        size = sum(parameter.numel() for parameter in small.parameters()) if not note else 0
        yield Row("sub-model", name, size, not note, note)
    note = _grown(model, axes, subject)
    if note:  # no client has such a model: report it only if it fails
        yield Row("sub-model", "grown", 0, False, note)


def _grown(model: nn.Module, axes: AxisMap, subject: _Subject) -> str:
    """Grow every axis to a different size, without values, and trace again: the code must follow."""
    sizes = prime_sizes(axes, axes.axes)
    try:
        large = shrunk(subject.model, axes, sizes).train(model.training)
        traced = find_axes(large, subject.example, subject.kwexample)
    except Exception as refused:
        return f"its code does not follow when its axes grow: {first_line(refused)}"
    problem = difference(axes, sizes, traced, str(subject.axes.dims) != str(axes.dims))
    return f"a size is written into the code: {problem}" if problem else ""


def _same_axes(small: nn.Module, axes: AxisMap, small_plan: Plan, subject: _Subject) -> str:
    traced = find_axes(small, subject.example, subject.kwexample)
    coarse = str(traced.dims) != str(axes.dims) and str(subject.axes.dims) != str(axes.dims)
    problem = difference(axes, small_plan.sizes, traced, coarse)
    return f"a size is written into the code: {problem}" if problem else ""


def _coverage(model: nn.Module, axes: AxisMap) -> float:
    cut = total = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if any(leaf.name in axes.axes for dim in axes.dims[name] for leaf in leaves(dim)):
            cut += parameter.numel()
    return cut / total if total else 0.0
