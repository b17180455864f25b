"""The settings of uploads: how much of a change is sent, and how exactly."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from nestling.errors import UploadError, nearest

Name = Literal["dense", "topk", "8-bit", "1-bit", "topk-8bit", "topk-1bit"]
Scope = Literal["global", "tensor"]
Rounding = Literal["nearest", "stochastic"]


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a change is sent.

    Attributes
    ----------
    format
        - ``"dense"``: every value as it is.
        - ``"topk"``: the values of largest magnitude as they are, and where they stand; all others are zero (Lin et
          al., Deep Gradient Compression, 2017, §3).
        - ``"8-bit"``: every value as one of 255 even steps between minus and plus the tensor's largest magnitude;
          zero stays zero.
        - ``"1-bit"``: every value as its sign, times the tensor's mean magnitude (Seide et al., 1-Bit Stochastic
          Gradient Descent, 2014; scaled as in Karimireddy et al., Error Feedback Fixes SignSGD, 2019). Zero is sent
          as a positive value.
        - ``"topk-8bit"``, ``"topk-1bit"``: both; the second is Sattler et al.'s sparse ternary compression (2019).
    share
        Of all floating-point values, how many ``topk`` keeps: rounded up. Zeros among them need not be sent.
    scope
        Whether ``topk`` looks for the largest in all tensors together (``"global"``) or in each one (``"tensor"``).
    rounding
        To the ``"nearest"`` step of ``8-bit``, or ``"stochastic"``: up or down at random such that the mean is right.
    feedback
        Whether what was not sent is remembered and added to the next change (see `compress`).
    """

    format: Name = "dense"
    share: float = 0.1
    scope: Scope = "global"
    rounding: Rounding = "nearest"
    feedback: bool = False

    def __post_init__(self) -> None:
        for field, known in (("format", Name), ("scope", Scope), ("rounding", Rounding)):
            given, names = getattr(self, field), get_args(known)
            if given not in names:
                raise UploadError(f"there is no {field} {given!r} of uploads{nearest(str(given), names)}")
        if not (isinstance(self.share, float | int) and 0 < self.share <= 1):
            raise UploadError(
                f"upload.share (of values that are sent) must be above 0 and at most 1, not {self.share!r}"
            )
