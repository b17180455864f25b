"""`Words`: how sequences of words become what a model reads and what it should say, and what is counted of its answers.

Two tasks: to fill in words that were masked (HeteroFL, section 4: 15 % of them), and to predict every next word
(FedRolex, section 4). Counts are sums over positions, so that those of many clients or workers add up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.kernels.cross_entropy import correct

IGNORED = -100  # a target that counts for nothing: PyTorch's own number for it
Sums = dict[str, tuple[int, float, int]]  # kind of position → how many, their loss, how many were right


@dataclass(frozen=True)
class Words:
    """A task on words.

    Attributes
    ----------
    task
        ``"masked-word"`` or ``"next-word"``.
    mask, padding
        The numbers that stand for a word to be filled in (−1: there are none), and for nothing at all.
    unknown, end
        The numbers of the word that stands for all others, and of the end of a sentence; −1 for none.
    share
        The share of words that are masked.
    positions
        Whether the loss of the masked task is over ``"all"`` positions, as in HeteroFL's experiments, or over those
        that are ``"masked"``.
    """

    task: Literal["masked-word", "next-word"]
    mask: int = -1
    padding: int = -1
    unknown: int = -1
    end: int = -1
    share: float = 0.15
    positions: Literal["all", "masked"] = "all"

    def batch(self, sequences: Tensor, generator: torch.Generator, positions: str = "") -> tuple[Tensor, Tensor]:
        """Return what a model reads of sequences (N, width), and the targets, both (N, length).

        >>> task = Words("next-word", padding=9)
        >>> task.batch(torch.tensor([[1, 5, 2, 9]]), torch.Generator())
        (tensor([[1, 5, 2]]), tensor([[   5,    2, -100]]))
        """
        sequences = sequences.long()
        if self.task == "next-word":
            return sequences[:, :-1], _asked(sequences[:, 1:], sequences[:, 1:] != self.padding)
        there = sequences != self.padding
        chosen = (torch.rand(sequences.shape, generator=generator) < self.share) & there
        if not chosen.any():  # a batch in which nothing is asked for has no loss
            chosen.view(-1)[there.view(-1).nonzero()[0]] = True
        covered = chosen if (positions or self.positions) == "masked" else there
        return sequences.masked_fill(chosen, self.mask), _asked(sequences, covered)

    def kinds(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the positions of every kind that is counted for itself, as masks of the shape of `targets`."""
        asked = targets != IGNORED
        if self.task == "masked-word":
            return {"all": asked, "masked": asked & (inputs == self.mask)}
        known = asked & (targets != self.unknown)
        return {"all": asked, "no_oov": known, "no_oov_eos": known & (targets != self.end)}

    def sums(self, logits: Tensor, inputs: Tensor, targets: Tensor) -> Sums:
        """Count a batch: logits (N, length, vocabulary), inputs and targets (N, length).

        >>> logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]])
        >>> Words("next-word", unknown=1).sums(logits, torch.zeros(1, 2), torch.tensor([[0, 1]]))["no_oov"]
        (1, 0.69..., 1)
        """
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
        hit = correct(logits, targets)
        return {
            kind: (int(where.sum()), losses[where].sum(dtype=torch.float64).item(), int((hit & where).sum()))
            for kind, where in self.kinds(inputs, targets).items()
        }

    def told(self, sums: Sums) -> dict[str, Any]:
        """Return the figures that sums stand for; a perplexity that is no number any more is None.

        ``loss`` and ``perplexity`` are those of the positions that training minimises the loss of.
        """
        if self.task == "masked-word":
            said = {f"perplexity_{kind}": _perplexity(part) for kind, part in sums.items()}
            return {**_of(sums[self.positions]), **said, "accuracy_masked": _accuracy(sums["masked"])}
        accuracies = {f"accuracy_{kind}": _accuracy(part) for kind, part in sums.items() if kind != "all"}
        return {"accuracy": _accuracy(sums["all"]), **accuracies, **_of(sums["all"])}


def added(parts: Iterable[Sums]) -> Sums:
    """Add sums up, in the order given.

    >>> added([{"all": (1, 0.5, 1)}, {"all": (2, 1.0, 0)}])
    {'all': (3, 1.5, 1)}
    """
    total: Sums = {}
    for part in parts:
        for kind, (count, loss, hits) in part.items():
            before = total.get(kind, (0, 0.0, 0))
            total[kind] = (before[0] + count, before[1] + loss, before[2] + hits)
    return total


def _asked(targets: Tensor, where: Tensor) -> Tensor:
    return targets.masked_fill(~where, IGNORED)


def _of(part: tuple[int, float, int]) -> dict[str, Any]:
    loss = part[1] / part[0] if part[0] else math.nan
    return {"loss": loss if math.isfinite(loss) else None, "perplexity": _perplexity(part)}


def _perplexity(part: tuple[int, float, int]) -> float | None:
    count, loss, _ = part
    try:
        value = math.exp(loss / count) if count else math.nan
    except OverflowError:
        value = math.inf
    return value if math.isfinite(value) else None


def _accuracy(part: tuple[int, float, int]) -> float | None:
    return part[2] / part[0] if part[0] else None
