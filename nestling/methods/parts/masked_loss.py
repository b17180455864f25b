"""HeteroFL's masked cross-entropy (§4): the loss is over a client's own classes, and only their rows merge."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.methods.context import Setup
from nestling.methods.part import Part
from nestling.tasks.task import OutputMask


@dataclass(frozen=True)
class MaskedLoss(Part):
    """Set the logits of classes that a client does not hold to zero (`nestling.tasks.class_loss.masked`)."""

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error for tasks without classes."""
        del public
        if not setup.task.classes:
            raise MethodError(
                f"the masked loss needs classes, and {setup.task.name} has none: set options.masked=false"
            )

    def output_mask(self, setup: Setup, held: Tensor) -> OutputMask | None:
        """Return the classes held and the rows that merge; None where the client holds all classes."""
        return None if len(held) == setup.task.classes else OutputMask(held, setup.rows(held))
