"""Check that a partial merge fits the model, before anything of it is merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.cut.accept import finite
from nestling.cut.extract import State
from nestling.cut.means import SubmodelMeans
from nestling.cut.partial_merge import PartialMean, PartialMerge, PartialSum
from nestling.cut.slices import Cut
from nestling.errors import StateError, nearest

_LEAST, _MOST = 1e-100, 1e110  # of the sum of clients' weights, each of which is at most 1e100
Slices = Mapping[str, Cut]


@dataclass(frozen=True, eq=False)
class Mergeable:
    """What a tally can merge.

    Attributes
    ----------
    whole, full
        The state of the whole model, and for every tensor the cut that keeps all of it.
    groups
        The names of tensors that are averaged: those that are always cut alike together.
    counters
        The names of tensors of which the highest value is taken.
    submodels
        The means of tensors that every sub-model has for itself.
    """

    whole: State
    full: Slices
    groups: Sequence[tuple[str, ...]]
    counters: Collection[str]
    submodels: SubmodelMeans


def accept_partial(
    model: Mergeable, part: PartialMerge, slices: Sequence[Slices], own: Sequence[Slices], *, trusted: bool
) -> None:
    """Raise `StateError` unless a partial merge is one of updates that `accept` would accept.

    Parameters
    ----------
    model, part
        What can be merged, and the partial merge.
    slices, own
        How the plans of its means, and of its sub-models, cut the tensors.
    trusted
        Skip the search for values that are not finite.
    """
    whole, group_of = model.whole, {name: group for group in model.groups for name in group}
    if part.clients < 1 and (part.means or part.sums or part.submodels or part.counters):
        raise StateError("the partial merge holds tensors, but names no clients")
    for mean, cuts in zip(part.means, slices, strict=True):
        _check_whole_groups(mean.tensors, group_of)
        _check_mean(whole, mean, cuts, trusted)
    for one in part.sums:
        _check_whole_groups(one.totals, group_of)
        _check_sum(model, one, next((group_of[name] for name in one.totals), ()), trusted)
    if len({mean.plan.key for mean in part.submodels}) < len(part.submodels):
        raise StateError("the partial merge holds a sub-model twice")
    for mean, cuts in zip(part.submodels, own, strict=True):
        names = model.submodels.names & cuts.keys()
        if mean.tensors.keys() != names:
            raise StateError(
                f"the sub-model {mean.plan.key} has {len(names)} tensors for itself: {sorted(names)[:3]} …"
            )
        _check_mean(whole, mean, cuts, trusted)
        model.submodels.check(mean.plan, mean.tensors)
    for name, tensor in part.counters.items():
        if name not in model.counters:
            raise StateError(f"the partial merge holds the counter {name!r}, which the model does not have")
        _check_tensor(name, tensor, tuple(whole[name].shape), whole[name].dtype)


def _check_mean(whole: State, mean: PartialMean, cuts: Slices, trusted: bool) -> None:
    if not _LEAST <= mean.weight <= _MOST:
        raise StateError(f"a mean has the weight {mean.weight!r}: it must be from {_LEAST:g} to {_MOST:g}")
    for name, tensor in mean.tensors.items():
        if name not in cuts:
            raise StateError(f"the partial merge holds {name!r}, which its plan drops")
        dtype = whole[name].dtype
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point or dtype.is_complex else dtype
        _check_tensor(name, tensor, cuts[name].shape, wide)
        if not trusted:
            _check_finite(name, tensor.to(dtype))


def _check_sum(model: Mergeable, one: PartialSum, names: tuple[str, ...], trusted: bool) -> None:
    if not names or set(names) != one.totals.keys():
        raise StateError(f"{', '.join(map(repr, one.totals)) or 'nothing'} cannot be one sum of tensors cut alike")
    whole, width = model.whole, model.full[names[0]].width
    _check_rows(names[0], one, whole[names[0]].numel() // width)
    for name, total in one.totals.items():
        dtype = whole[name].dtype
        _check_tensor(name, total, (len(one.weights), width), torch.promote_types(dtype, torch.float64))
        if trusted:
            continue
        mean = total / one.weights[:, None]
        if dtype == torch.float64:  # changes are summed
            old = whole[name].reshape(-1, width).to(total.device)
            mean = mean + (old if one.rows is None else old[one.rows])
        _check_finite(name, total)
        _check_finite(name, mean.to(dtype))


def _check_rows(name: str, one: PartialSum, count: int) -> None:
    """Raise unless the rows of a sum are some of the `count` rows of a tensor, each with a weight above zero."""
    weights, rows = one.weights, one.rows
    kept = count if rows is None else rows.numel()
    _check_tensor(f"weights of {name}", weights, (kept,), torch.float64)
    if not kept or not (float(weights.min()) >= _LEAST and float(weights.max()) <= _MOST):
        raise StateError(f"the weights of {name!r} in a partial merge must be from {_LEAST:g} to {_MOST:g}")
    if rows is not None:
        _check_tensor(f"rows of {name}", rows, (kept,), torch.int64)
        if int(rows[0]) < 0 or int(rows[-1]) >= count or not bool((rows[1:] > rows[:-1]).all()):
            raise StateError(f"the rows of {name!r} in a partial merge must be increasing, from 0 to {count - 1}")


def _check_whole_groups(tensors: State, group_of: Mapping[str, tuple[str, ...]]) -> None:
    """Raise unless the names are those of whole groups: tensors that are cut alike are merged alike."""
    for name in tensors:
        if name not in group_of:
            raise StateError(f"the partial merge holds {name!r}, which is not merged{nearest(name, group_of)}")
        missing = [other for other in group_of[name] if other not in tensors]
        if missing:
            raise StateError(f"the partial merge holds {name!r} without {missing[0]!r}, which is always cut alike")


def _check_tensor(name: str, tensor: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        raise StateError(f"{name!r} must be a dense tensor that holds values")
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        raise StateError(
            f"the tensor {name!r} of a partial merge has shape {tuple(tensor.shape)} of {tensor.dtype}, "
            f"but it must have {tuple(shape)} of {dtype}"
        )


def _check_finite(name: str, tensor: Tensor) -> None:
    if not finite(tensor):
        raise StateError(f"the tensor {name!r} holds values that are not finite")
