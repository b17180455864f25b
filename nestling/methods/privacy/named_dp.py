"""Differential privacy by name: the settings in ``parts=dp:clip=0.5:epsilon=8``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from nestling.errors import MethodError, nearest
from nestling.methods.method import Method
from nestling.methods.privacy.adaptive_clip import AdaptiveDP
from nestling.methods.privacy.central_dp import EXAMPLE, CentralDP

_ADAPTIVE = ("rate", "count_noise")


def with_central_dp(method: Method, text: str) -> Method:
    """Return a method whose merge is differentially private; `text` is such as ``clip=0.5:epsilon=8``.

    With a ``quantile``, the clip is adaptive.

    >>> from nestling.methods.fedavg import fedavg
    >>> with_central_dp(fedavg(), "clip=0.5:epsilon=8").parts[-1].epsilon
    8.0
    >>> with_central_dp(fedavg(), "clip=0.1:epsilon=8:quantile=0.5").parts[-1].rate
    0.2
    """
    known = [field.name for field in fields(AdaptiveDP)]
    values: dict[str, Any] = {}
    for item in filter(None, text.split(":")):
        name, equals, value = item.partition("=")
        if not equals or name not in known:
            raise MethodError(f"dp has no setting {item!r}{nearest(name, known)}: write {EXAMPLE}")
        try:
            values[name] = value if name == "counts" else float(value)
        except ValueError:
            raise MethodError(f"dp's {name} must be a number, not {value!r}") from None
    alone = [name for name in _ADAPTIVE if name in values and "quantile" not in values]
    if alone:
        raise MethodError(f"dp's {alone[0]} is of an adaptive clip: add its quantile, such as {EXAMPLE}:quantile=0.5")
    return method.with_parts(AdaptiveDP(**values) if "quantile" in values else CentralDP(**values))
