"""Own data in memory: tuples, dictionaries or single arrays; NumPy's, PyTorch's, or lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestling.data.own.own_samples import OwnSamples
from nestling.errors import DataError, first_line, nearest
from nestling.model_inputs import Inputs, count

LABELS = ("labels", "label")  # the keys of targets in a dictionary, unless another one is given


def matches(source: Any) -> bool:
    """Return whether a source is an array, a tuple of arrays, or a dictionary of arrays."""
    if isinstance(source, dict):
        return bool(source) and all(is_array(value) for value in source.values())
    if isinstance(source, tuple) and len(source) > 1:
        return is_array(source[-1]) and all(is_array(one) or matches(one) for one in source[:-1])
    return is_array(source)


def samples_of(source: Any, what: str, label: str = "") -> OwnSamples:
    """Return the samples in arrays: the last of a tuple are targets, and ``label`` or ``labels`` of a dictionary.

    >>> samples = samples_of((np.zeros((2, 3)), [0, 1]), "client 0")
    >>> samples.inputs.dtype, samples.outputs
    (torch.float32, tensor([0, 1]))
    >>> samples_of({"input_ids": [[1, 2]], "labels": [1]}, "client 0").label
    'labels'
    """
    if isinstance(source, dict):
        tensors = {str(name): as_inputs(value, f"{what}: {name!r}") for name, value in source.items()}
        key = label or next((name for name in LABELS if name in source), "")
        if key and key not in source:
            raise DataError(f"{what}: there is no {key!r}{nearest(key, tensors)}")
        targets = as_targets(source[key], what) if key else None
        return from_tensors({name: value for name, value in tensors.items() if name != key}, targets, what, key)
    if isinstance(source, tuple):
        first, *others = (_inputs(part, what) for part in source[:-1])
        return from_tensors((first, *others) if others else first, as_targets(source[-1], what), what)
    return from_tensors(as_inputs(source, what), None, what)


def from_tensors(inputs: Inputs, targets: Tensor | None, what: str, label: str = "") -> OwnSamples:
    """Return samples, with empty targets if there are none."""
    if isinstance(inputs, dict) and not inputs:
        raise DataError(f"{what}: there are targets, but no inputs")
    return OwnSamples(inputs, torch.empty(count(inputs), 0) if targets is None else targets, label)


def as_inputs(values: Any, what: str) -> Tensor:
    """Return values as a tensor of inputs: float32, uint8 (pixels), bool (masks) or int64 (tokens)."""
    tensor = _tensor(values, f"{what}: the inputs")
    if tensor.is_floating_point():
        return tensor.float()
    return tensor if tensor.dtype in (torch.uint8, torch.bool) else tensor.long()


def as_targets(values: Any, what: str) -> Tensor:
    """Return values as a tensor of targets: float32, or int64 for whole numbers."""
    tensor = _tensor(values, f"{what}: the targets")
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _inputs(part: Any, what: str) -> Any:
    if isinstance(part, dict):
        return {name: as_inputs(value, what) for name, value in part.items()}
    if isinstance(part, tuple):
        return tuple(as_inputs(value, what) for value in part)
    return as_inputs(part, what)


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor, a list of numbers, or an array of NumPy's, pandas' and the like.

    >>> is_array([[1, 2], [3, 4]]), is_array([torch.zeros(2), 3]), is_array((1, 2))
    (True, False, False)
    """
    if isinstance(value, list):  # a list of clients holds no numbers
        while isinstance(value, list) and value:
            value = value[0]
        return isinstance(value, int | float | np.number)
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_meta:
            kind = (
                "meta tensors, which have no values" if values.is_meta else "sparse tensors: convert with .to_dense()"
            )
            raise DataError(f"{what} are {kind}")
        tensor = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
            if isinstance(next(array.flat, None), str):
                raise TypeError("they are texts, which have to be encoded, labels as whole numbers from 0")
            tensor = torch.from_numpy(np.require(array, requirements=("C", "W")))
        except (TypeError, ValueError) as problem:
            raise DataError(f"{what} are not numbers in a regular array: {first_line(problem)}") from problem
    if tensor.is_complex() or tensor.dim() == 0:
        raise DataError(
            f"{what} must be numbers of shape (samples, …), not {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    return tensor
