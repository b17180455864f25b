"""`LanguageTask`: what a model reads of sequences of words, what it should predict, and how it is measured.

Two tasks: to fill in words that were masked (HeteroFL, section 4: 15 % of them), and to predict every next word
(FedRolex, section 4). Counts are sums over positions, so that those of many clients or workers add up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.data.federated import ClientData
from nestling.kernels.cross_entropy import correct
from nestling.tasks.class_loss import ClassLoss
from nestling.tasks.task import Metric

IGNORED = -100  # a target that counts for nothing: PyTorch's own number for it
TokenSums = dict[str, tuple[int, float, int]]  # kind of position → how many, their loss, how many were right

_CHUNK = 250  # sequences that one job tests; which of their words are masked depends on it
_LOGITS = 2**23  # computed at a time in tests: 32 MiB


@dataclass(frozen=True)
class LanguageTask(ClassLoss):
    """A task on words.

    Attributes
    ----------
    task
        ``"masked-word"`` or ``"next-word"``.
    mask, padding
        The numbers that stand for a word to be filled in (−1: there are none), and for nothing at all.
    classes
        The size of the vocabulary that answers are over.
    unknown, end
        The numbers of the word that stands for all others, and of the end of a sentence; −1 for none.
    share
        The share of words that are masked.
    positions
        Whether the loss of the masked task is over ``"all"`` positions, as in HeteroFL's experiments, or over those
        that are ``"masked"``.
    accelerate
        Whether our faster kernel may compute the loss.
    """

    task: Literal["masked-word", "next-word"]
    mask: int = -1
    padding: int = -1
    unknown: int = -1
    end: int = -1
    share: float = 0.15
    positions: Literal["all", "masked"] = "all"
    classes: int = 1
    accelerate: bool = True
    local_accuracy: ClassVar[bool] = False  # clients may be hundreds of thousands

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return self.task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return what is measured; the best round is chosen by the first."""
        perplexity, loss = Metric("perplexity", "lower"), Metric("loss", "lower")
        accuracy = Metric("accuracy", "higher", percent=True)
        return (perplexity, loss) if self.task == "masked-word" else (accuracy, loss, perplexity)

    @property
    def draws(self) -> bool:
        """Whether words are masked at random."""
        return self.task == "masked-word"

    def prepare(self, samples: Tensor, random: torch.Generator, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of sequences (N, width); in tests, all positions have targets."""
        return self.batch(samples, random, positions="" if training else "all")

    def objection(self, model: Callable[[Tensor], Any], example: Tensor) -> str:
        """Return why a model cannot learn to predict next words: what it says must not depend on later words."""
        if self.task != "next-word" or example.shape[1] < 2 or not isinstance(model, nn.Module):
            return ""
        one = example[:1]
        other = one.clone()
        other[:, -1] = 1
        was_training = model.training
        model.eval()
        with torch.no_grad():
            outputs = [model(ids) for ids in (one, other)]
        model.train(was_training)
        if isinstance(outputs[0], Tensor) and not torch.equal(outputs[0][:, :-1], outputs[1][:, :-1]):
            return (
                "sees the words that it should predict: use a causal one (model.options.causal=true), "
                "or data.task=masked-word"
            )
        return ""

    def output_shape(self, inputs: Tensor) -> tuple[int, ...]:
        """Return the shape of logits, (samples, length, classes)."""
        return (*inputs.shape, self.classes)

    def answer(self, output: Tensor, inputs: Tensor, targets: Tensor) -> TokenSums:
        """Return sums over positions: logits would be far too many."""
        return self.sums(output, inputs, targets)

    def join(self, answers: Iterable[TokenSums]) -> TokenSums:
        """Add sums up, in the order given.

        >>> LanguageTask("next-word").join([{"all": (1, 0.5, 1)}, {"all": (2, 1.0, 0)}])
        {'all': (3, 1.5, 1)}
        """
        total: TokenSums = {}
        for part in answers:
            for kind, (count, loss, hits) in part.items():
                before = total.get(kind, (0, 0.0, 0))
                total[kind] = (before[0] + count, before[1] + loss, before[2] + hits)
        return total

    def test_chunk(self, samples: int) -> int:
        """Return the number of sequences that one job tests: always the same, as masks are drawn by job."""
        del samples
        return _CHUNK

    def test_batch(self, inputs: Tensor, most: int) -> int:
        """Return the number of sequences (N, length) tested at once: a word has as many logits as the vocabulary."""
        return max(1, min(most, _LOGITS // (inputs.shape[1] * self.classes)))

    def batch(self, sequences: Tensor, generator: torch.Generator, positions: str = "") -> tuple[Tensor, Tensor]:
        """Return what a model reads of sequences (N, width), and the targets, both (N, length).

        >>> task = LanguageTask("next-word", padding=9)
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

    def sums(self, logits: Tensor, inputs: Tensor, targets: Tensor) -> TokenSums:
        """Count a batch: logits (N, length, vocabulary), inputs and targets (N, length).

        >>> logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]])
        >>> LanguageTask("next-word", unknown=1).sums(logits, torch.zeros(1, 2), torch.tensor([[0, 1]]))["no_oov"]
        (1, 0.69..., 1)
        """
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
        hit = correct(logits, targets)
        return {
            kind: (int(where.sum()), losses[where].sum(dtype=torch.float64).item(), int((hit & where).sum()))
            for kind, where in self.kinds(inputs, targets).items()
        }

    def measure(self, answer: TokenSums, data: ClientData | None = None) -> dict[str, Any]:
        """Return the figures that sums stand for; a perplexity that is no number is None.

        ``loss`` and ``perplexity`` are those of the positions that training minimises the loss of.
        """
        del data
        if self.task == "masked-word":
            perplexities = {f"perplexity_{kind}": _perplexity(part) for kind, part in answer.items()}
            return {**_of(answer[self.positions]), **perplexities, "accuracy_masked": _accuracy(answer["masked"])}
        accuracies = {f"accuracy_{kind}": _accuracy(part) for kind, part in answer.items() if kind != "all"}
        return {"accuracy": _accuracy(answer["all"]), **accuracies, **_of(answer["all"])}


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
