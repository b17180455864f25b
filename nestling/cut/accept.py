"""Whether a client's update fits its plan: asked of every update before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut.extract import State
from nestling.cut.slices import Cut
from nestling.errors import StateError, nearest

_KINDS = (Tensor, nn.Parameter)


def accept(axes: AxisMap, whole: State, state: State, how: Mapping[str, Cut], trusted: bool) -> bool:
    """Raise `StateError` unless an update has every tensor of its plan: dense, of its shape and dtype, and finite.

    Parameters
    ----------
    axes, whole
        The axes and the state of the whole model.
    state, how
        The update, and how its plan cuts every tensor.
    trusted
        Skip the search for values that are not finite.

    Returns
    -------
    bool
        Whether all tensors are where the model's are.
    """
    plain = _plain(whole, state, how)
    if not plain:
        _explain(axes, whole, state, how)
    if not trusted:
        for name, tensor in state.items():
            if averaged(tensor) and not _finite(tensor):
                raise StateError(f"the tensor {name!r} holds values that are not finite")
    return plain or all(tensor.device == whole[name].device for name, tensor in state.items())


def averaged(tensor: Tensor) -> bool:
    """Whether a tensor is merged by averaging: whole numbers are counters, and are not."""
    return tensor.is_floating_point() or tensor.is_complex()


def _plain(whole: State, state: State, how: Mapping[str, Cut]) -> bool:
    """Whether an update is just as it should be, and where it should be: the usual case, asked in one breath."""
    return len(state) == len(how) and all(
        (tensor := state.get(name)) is not None
        and tensor.__class__ in _KINDS
        and tensor.shape == place.shape
        and tensor.dtype == whole[name].dtype
        and tensor.layout is torch.strided
        and tensor.device == whole[name].device
        for name, place in how.items()
    )


def _explain(axes: AxisMap, whole: State, state: State, how: Mapping[str, Cut]) -> None:
    """Raise the error that says what does not fit, if anything does not."""
    for name in state:
        if name not in how:
            where = "its plan drops" if name in whole else "the model does not have"
            raise StateError(f"the update holds {name!r}, which {where}{nearest(name, how)}")
    for name, place in how.items():
        tensor = state.get(name)
        if tensor is None:
            if axes.tied.get(name) in state:
                continue
            raise StateError(f"the update lacks the tensor {name!r}, which its plan keeps")
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise StateError(f"{name!r} must be a dense tensor that holds values")
        if tensor.shape != place.shape:
            raise StateError(
                f"the tensor {name!r} has shape {tuple(tensor.shape)}, but its plan gives it {place.shape}"
            )
        if tensor.dtype != whole[name].dtype:
            raise StateError(f"the tensor {name!r} is {tensor.dtype}, but the model's is {whole[name].dtype}")


def _finite(tensor: Tensor) -> bool:
    # a sum is quicker than asking every value; it can only overflow to a false alarm, which the slow way settles
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
