"""NeFL's inconsistent parameters, which every sub-model has for itself, and parameters that are not trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from nestling.axes import AxisMap
from nestling.methods.context import Owner, Setup
from nestling.methods.part import Part

NORMS = "norms"  # a special pattern: matches every norm that has running statistics


def matching(axes: AxisMap, patterns: tuple[str, ...]) -> frozenset[str]:
    """Return the state names that match a shell pattern; ``"norms"`` matches norms with running statistics."""
    norms = {name.rpartition(".")[0] for name in axes.dims if name.endswith(".running_mean")}
    return frozenset(
        name
        for name in axes.dims
        if any(
            name.rpartition(".")[0] in norms if pattern == NORMS else fnmatchcase(name, pattern) for pattern in patterns
        )
    )


@dataclass(frozen=True)
class PerSubmodel(Part):
    """Tensors that are averaged only over the clients that trained the same sub-model.

    Attributes
    ----------
    patterns
        Shell patterns of state names, or ``"norms"``.
    """

    patterns: tuple[str, ...]

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Claim the tensors for sub-models."""
        return dict.fromkeys(sorted(matching(setup.axes, self.patterns)), "submodel")


@dataclass(frozen=True)
class Untrained(Part):
    """Parameters that are not trained, but sent, merged and counted like all others; `patterns` as in `PerSubmodel`."""

    patterns: tuple[str, ...]

    def build(self, model: nn.Module, setup: Setup, ratio: float) -> None:
        """Leave the parameters out of training."""
        del ratio
        names = matching(setup.axes, self.patterns)
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
