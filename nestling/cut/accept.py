"""Check that a client's update fits its plan, before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut.extract import State
from nestling.cut.slices import Cut
from nestling.errors import StateError, nearest

_KINDS = (Tensor, nn.Parameter)


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
            if averaged(tensor) and not finite(tensor):
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


def finite(tensor: Tensor) -> bool:
    """Return whether all values are finite."""
    # a sum is faster than a check of every value; if it overflows, the slow check decides
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
