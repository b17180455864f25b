"""Check that an update fits its plan, and a partial merge the model, before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut.extract import State
from nestling.cut.partial_merge import PartialMerge, PartialSum
from nestling.cut.slices import Cut
from nestling.errors import StateError, nearest

_KINDS = (Tensor, nn.Parameter)
_LEAST, _MOST = 1e-100, 1e110  # of the sum of clients' weights, each of which is at most 1e100


def accept(axes: AxisMap, whole: State, state: State, cuts: Mapping[str, Cut], trusted: bool) -> bool:
    """Raise `StateError` unless an update has every tensor of its plan: dense, of its shape and dtype, and finite.

    Parameters
    ----------
    axes, whole
        The axes and the state of the whole model.
    state, cuts
        The update, and how its plan cuts every tensor.
    trusted
        Skip the search for values that are not finite.

    Returns
    -------
    bool
        Whether all tensors are on the devices of the model's tensors.
    """
    plain = _fits_as_it_is(whole, state, cuts)
    if not plain:
        _explain(axes, whole, state, cuts)
    if not trusted:
        for name, tensor in state.items():
            if averaged(tensor) and not _finite(tensor):
                raise StateError(f"the tensor {name!r} holds values that are not finite")
    return plain or all(tensor.device == whole[name].device for name, tensor in state.items())


def averaged(tensor: Tensor) -> bool:
    """Return whether a tensor is merged by averaging: not if it holds integers, which are counters."""
    return tensor.is_floating_point() or tensor.is_complex()


def _fits_as_it_is(whole: State, state: State, cuts: Mapping[str, Cut]) -> bool:
    """Return whether an update fits and is on the model's devices: the usual case, checked in a single pass."""
    return len(state) == len(cuts) and all(
        (tensor := state.get(name)) is not None
        and tensor.__class__ in _KINDS
        and tensor.shape == cut.shape
        and tensor.dtype == whole[name].dtype
        and tensor.layout is torch.strided
        and tensor.device == whole[name].device
        for name, cut in cuts.items()
    )


def _explain(axes: AxisMap, whole: State, state: State, cuts: Mapping[str, Cut]) -> None:
    """Raise `StateError` with the first thing that does not fit, if any."""
    for name in state:
        if name not in cuts:
            where = "its plan drops" if name in whole else "the model does not have"
            raise StateError(f"the update holds {name!r}, which {where}{nearest(name, cuts)}")
    for name, cut in cuts.items():
        tensor = state.get(name)
        if tensor is None:
            if axes.tied.get(name) in state:
                continue
            raise StateError(f"the update lacks the tensor {name!r}, which its plan keeps")
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise StateError(f"{name!r} must be a dense tensor that holds values")
        if tensor.shape != cut.shape:
            raise StateError(f"the tensor {name!r} has shape {tuple(tensor.shape)}, but its plan gives it {cut.shape}")
        if tensor.dtype != whole[name].dtype:
            raise StateError(f"the tensor {name!r} is {tensor.dtype}, but the model's is {whole[name].dtype}")


def _finite(tensor: Tensor) -> bool:
    # a sum is faster than a check of every value; if it overflows, the slow check decides
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def accept_partial(
    whole: State,
    part: PartialMerge,
    slices: Sequence[Mapping[str, Cut]],
    groups: Sequence[tuple[str, ...]],
    counters: Mapping[str, object],
    full: Mapping[str, Cut],
    *,
    trusted: bool,
) -> None:
    """Raise `StateError` unless a partial merge is one of updates that `accept` would accept.

    Parameters
    ----------
    whole
        The state of the whole model.
    part, slices
        The partial merge, and how the plan of each of its means cuts the tensors.
    groups
        The names of tensors that are averaged: those that are always cut alike together.
    counters
        The names of tensors of which the highest value is taken.
    full
        For every tensor, the cut that keeps all of it.
    trusted
        Skip the search for values that are not finite.
    """
    group_of = {name: group for group in groups for name in group}
    if part.clients < 1 and (part.means or part.sums or part.counters):
        raise StateError("the partial merge holds tensors, but names no clients")
    for mean, cuts in zip(part.means, slices, strict=True):
        if not _LEAST <= mean.weight <= _MOST:
            raise StateError(f"a mean has the weight {mean.weight!r}: it must be from {_LEAST:g} to {_MOST:g}")
        _check_whole_groups(mean.tensors, group_of)
        for name, tensor in mean.tensors.items():
            if name not in cuts:
                raise StateError(f"the partial merge holds {name!r}, which its plan drops")
            dtype = whole[name].dtype
            _check_tensor(name, tensor, cuts[name].shape, torch.promote_types(dtype, torch.float32))
            if not trusted:
                _check_finite(name, tensor.to(dtype))
    for one in part.sums:
        _check_whole_groups(one.totals, group_of)
        names = next((group_of[name] for name in one.totals), ())
        if not names or set(names) != one.totals.keys():
            raise StateError(f"{', '.join(map(repr, one.totals)) or 'nothing'} cannot be one sum of tensors cut alike")
        width = full[names[0]].width
        _check_rows(names[0], one, whole[names[0]].numel() // width)
        for name, total in one.totals.items():
            dtype = torch.promote_types(whole[name].dtype, torch.float64)
            _check_tensor(name, total, (len(one.weights), width), dtype)
            if not trusted:
                mean_rows = total / one.weights[:, None]
                if whole[name].dtype == torch.float64:  # changes are summed
                    old = whole[name].reshape(-1, width).to(total.device)
                    mean_rows = mean_rows + (old if one.rows is None else old[one.rows])
                _check_finite(name, total)
                _check_finite(name, mean_rows.to(whole[name].dtype))
    for name, tensor in part.counters.items():
        if name not in counters:
            raise StateError(f"the partial merge holds the counter {name!r}, which the model does not have")
        _check_tensor(name, tensor, tuple(whole[name].shape), whole[name].dtype)


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


def _check_finite(name: str, tensor: Tensor) -> None:
    if not _finite(tensor):
        raise StateError(f"the tensor {name!r} holds values that are not finite")
