"""Names in the server state of a method: several kinds of tensors that are named as those of the model."""

from __future__ import annotations

from torch import Tensor

from nestling.cut.extract import State


def with_kind(kind: str, tensors: State) -> dict[str, Tensor]:
    """Return tensors under the names that a server state has for their kind, such as ``server/NAME``.

    >>> list(with_kind("server/", {"bias": Tensor()}))
    ['server/bias']
    """
    return {kind + name: value for name, value in tensors.items()}


def of_kind(kind: str, state: State) -> dict[str, Tensor]:
    """Return the tensors of a kind in a server state, under their own names.

    >>> list(of_kind("server/", {"server/bias": Tensor(), "mask/axis": Tensor()}))
    ['bias']
    """
    return {name.removeprefix(kind): value for name, value in state.items() if name.startswith(kind)}
