"""Error feedback: what was not sent is not lost, but sent later.

Seide et al., 1-Bit Stochastic Gradient Descent, 2014; why it repairs biased formats: Karimireddy et al., Error
Feedback Fixes SignSGD, 2019; for Top-K: Lin et al., Deep Gradient Compression, 2017, §3.

Departure from Lin et al.: their momentum correction is left out. It is for gradients, and a change of weights already
holds what an optimiser made of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nestling.errors import UploadError
from nestling.settings import Upload
from nestling.upload.message import decode, encode


def compress(
    change: Mapping[str, Tensor], residual: Mapping[str, Tensor], how: Upload, *, seed: int = 0
) -> tuple[bytes, dict[str, Tensor]]:
    """Return a change as bytes, together with what was left over before, and what is left over now.

    What is sent and what is left over are together what there was to send: to the bit for ``topk``, and up to one
    rounding of the residual for formats that round.

    Parameters
    ----------
    change, how, seed
        As `encode` takes them.
    residual
        What the last call left over; tensors that were not sent before may be missing.

    Returns
    -------
    tuple
        The bytes, and the new residual: of every floating-point tensor, in float32 or float64, in which small changes
        to tensors of fewer bits add up. It is empty without feedback, and for ``dense``, which leaves nothing.

    Examples
    --------
    >>> how = Upload(format="topk", share=0.5, feedback=True)
    >>> change = {"weight": torch.tensor([3.0, 2.0])}
    >>> first, residual = compress(change, {}, how)
    >>> second, residual = compress(change, residual, how)
    >>> decode(first, change), decode(second, change)
    ({'weight': tensor([3., 0.])}, {'weight': tensor([0., 4.])})
    """
    if not how.feedback or how.format == "dense":
        return encode(change, how, seed=seed), {}
    values = {name: _wide(tensor) for name, tensor in change.items() if tensor.is_floating_point()}
    _fit(values, residual)
    owed = {name: value + residual[name] if name in residual else value for name, value in values.items()}
    data = encode({**change, **{name: owed[name].to(change[name].dtype) for name in owed}}, how, seed=seed)
    sent = decode(data, change)
    return data, {name: tensor - sent[name].to(tensor.dtype) for name, tensor in owed.items()}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _fit(values: Mapping[str, Tensor], residual: Mapping[str, Tensor]) -> None:
    """Raise where a residual is not one of such values: it would be lost."""
    for name in residual:
        one, two = (f"{tuple(of[name].shape)} {of[name].dtype}" if name in of else "none" for of in (values, residual))
        if one != two:
            raise UploadError(
                f"the residual does not fit the change: of {name!r} there is {one} to send, {two} left over"
            )
