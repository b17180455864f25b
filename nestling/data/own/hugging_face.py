"""Own data as a ``Dataset`` of Hugging Face's ``datasets``, which is recognised by what it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from nestling.data.dataset import channels_first, column
from nestling.data.own import in_memory
from nestling.data.own.own_samples import OwnSamples
from nestling.errors import DataError


def matches(source: Any) -> bool:
    """Return whether a source is a Hugging Face dataset: a table with named columns."""
    return all(hasattr(source, name) for name in ("column_names", "features", "with_format")) and not isinstance(
        source, dict
    )


def samples_of(source: Any, what: str, label: str = "") -> OwnSamples:
    """Return the samples of a dataset: a single column of inputs as a tensor, several as a dictionary by their names.

    Images, which are bytes (H, W) or (H, W, C), become (C, H, W).
    """
    if not hasattr(source, "__len__"):
        raise DataError(f"{what}: a streamed dataset has no samples by index: load it with streaming=False")
    names = list(source.column_names)
    arrays = {}
    for name in names:
        values = column(source, name)
        if values.dtype.kind not in "biuf":
            lengths = isinstance(next(iter(values), None), np.ndarray | list)
            kind = (
                "samples of different lengths: pad them" if lengths else f"{values.dtype} and not numbers: tokenize it"
            )
            raise DataError(f"{what}: the column {name!r} holds {kind}, or take it out with remove_columns([{name!r}])")
        arrays[name] = channels_first(values)
    samples = in_memory.samples_of(arrays, what, label)
    if len(samples.inputs) > 1:
        return samples
    (inputs,) = samples.inputs.values()
    return OwnSamples(inputs, samples.outputs)
