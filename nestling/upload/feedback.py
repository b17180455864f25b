"""Error feedback: the part of a change that compression loses is added to the next change.

Seide et al., 1-Bit Stochastic Gradient Descent, 2014; why it repairs biased formats: Karimireddy et al., Error
Feedback Fixes SignSGD, 2019; for Top-K: Lin et al., Deep Gradient Compression, 2017, §3.

Departure from Lin et al.: their momentum correction is left out. It applies to gradients, while a change of weights
already includes the optimizer's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nestling.errors import UploadError
from nestling.settings import Upload
from nestling.upload.message import decode, encode


def compress(
    change: Mapping[str, Tensor], residual: Mapping[str, Tensor], settings: Upload, *, seed: int = 0
) -> tuple[bytes, dict[str, Tensor]]:
    """Encode a change plus the last residual; return the bytes and the new residual.

    The decoded change and the new residual add up to the change plus the old residual: exactly for ``topk``, and up to
    one rounding of the residual for formats that round.

    Parameters
    ----------
    change, settings, seed
        As in `encode`.
    residual
        The residual that the last call returned; tensors that were not sent before may be missing.

    Returns
    -------
    tuple
        The bytes, and the new residual of every floating-point tensor, in float32 or float64, in which small changes
        to tensors of lower precision add up. It is empty without feedback, and for ``dense``, which is exact.

    Examples
    --------
    >>> settings = Upload(format="topk", fraction=0.5, feedback=True)
    >>> change = {"weight": torch.tensor([3.0, 2.0])}
    >>> first, residual = compress(change, {}, settings)
    >>> second, residual = compress(change, residual, settings)
    >>> decode(first, change), decode(second, change)
    ({'weight': tensor([3., 0.])}, {'weight': tensor([0., 4.])})
    """
    if not settings.feedback or settings.format == "dense":
        return encode(change, settings, seed=seed), {}
    values = {
        name: tensor.detach().cpu().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        for name, tensor in change.items()
        if tensor.is_floating_point()
    }
    for name in residual:
        kinds = [
            f"{tuple(state[name].shape)} {state[name].dtype}" if name in state else "missing"
            for state in (values, residual)
        ]
        if kinds[0] != kinds[1]:
            raise UploadError(f"the change of {name!r} is {kinds[0]}, but its residual is {kinds[1]}")
    total = {name: value + residual[name] if name in residual else value for name, value in values.items()}
    data = encode({**change, **{name: total[name].to(change[name].dtype) for name in total}}, settings, seed=seed)
    sent = decode(data, change)
    return data, {name: tensor - sent[name].to(tensor.dtype) for name, tensor in total.items()}
