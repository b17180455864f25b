"""Fed-ET's weighted consensus of an ensemble, and the view of those that disagree, summed teacher by teacher.

Which teachers disagree is known only after the last of them. So sums are kept apart by the class that a teacher
predicts for a sample: as many as classes were predicted for one sample, and not as there are teachers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.methods.parts.soft_labels import divergence_from

_NONE = -1  # the class of a sum to which no teacher was added


@dataclass(frozen=True, eq=False)
class Votes:
    """Sums over teachers, in double precision.

    Attributes
    ----------
    classes
        The class predicted by the teachers of each sum, (sums, samples); −1 for none.
    weights
        Their summed weights, (sums, samples).
    logits
        Their summed weighted logits, (sums, samples, classes).
    """

    classes: Tensor
    weights: Tensor
    logits: Tensor

    @classmethod
    def none(cls, samples: int, classes: int) -> Votes:
        """Return the sums over no teachers."""
        weights = torch.zeros(0, samples, dtype=torch.float64)
        return cls(weights.long(), weights, torch.zeros(0, samples, classes, dtype=torch.float64))

    def add(self, logits: Tensor) -> Votes:
        """Return the sums with another teacher's logits, (samples, classes), weighted by their variance.

        >>> votes = Votes.none(1, 2).add(torch.tensor([[4.0, 0.0]])).add(torch.tensor([[0.0, 1.0]]))
        >>> votes.classes.tolist(), votes.weights.tolist()
        ([[0], [1]], [[4.0], [0.25]])
        """
        logits, sums = logits.double(), self
        predicted, weights = logits.argmax(-1), confidence(logits)
        free = (sums.classes == predicted) | (sums.classes == _NONE)
        if not bool(free.any(0).all()):
            sums = sums._with_room()
            free = (sums.classes == predicted) | (sums.classes == _NONE)
        place = free.int().argmax(0, keepdim=True)  # the first: sums of one sample are filled in order
        return Votes(
            sums.classes.scatter(0, place, predicted[None]),
            sums.weights.scatter_add(0, place, weights[None]),
            sums.logits.scatter_add(0, place[..., None].expand(1, *logits.shape), (weights[:, None] * logits)[None]),
        )

    def consensus(self) -> Tensor:
        """Return the weighted mean of all teachers' logits, (samples, classes)."""
        return self.logits.sum(0) / self.weights.sum(0)[:, None]

    def dissent(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean logits of the teachers that predict other classes than `labels`, (samples,).

        Returns
        -------
        tuple
            The logits, (samples, classes), zero where all agree; and where some disagree, (samples,) bool.
        """
        others = (self.classes != labels) & (self.classes != _NONE)
        total = (self.weights * others).sum(0)
        logits = (self.logits * others[..., None]).sum(0)
        return logits / torch.where(total > 0, total, 1.0)[:, None], others.any(0)

    def _with_room(self) -> Votes:
        more = (F.pad(self.weights, (0, 0, 0, 1)), F.pad(self.logits, (0, 0, 0, 0, 0, 1)))
        return Votes(F.pad(self.classes, (0, 0, 0, 1), value=_NONE), *more)


def confidence(logits: Tensor) -> Tensor:
    """Return the weight of a teacher for every sample, (samples,): the variance of its logits over classes.

    It is never exactly zero, so that a consensus of teachers without any opinion is their plain mean.

    >>> confidence(torch.tensor([[1.0, 3.0], [2.0, 2.0]], dtype=torch.float64)).round(decimals=6)
    tensor([1., 0.], dtype=torch.float64)
    """
    return logits.var(-1, correction=0).clamp_min(1e-12)


def consensus_loss(logits: Tensor, labels: Tensor, dissent: Tensor, differ: Tensor, diversity: float) -> Tensor:
    """Return the cross-entropy against the consensus' labels, and `diversity` times the divergence from the dissent.

    Parameters
    ----------
    logits
        Of the model in training, (samples, classes).
    labels
        The classes of the consensus, (samples,).
    dissent, differ
        What `Votes.dissent` returned for these labels. Where all teachers agree, the second term is zero.
    diversity
        λ.
    """
    divergence = divergence_from(dissent.softmax(-1), logits) * differ
    return F.cross_entropy(logits, labels) + diversity * divergence.mean()
