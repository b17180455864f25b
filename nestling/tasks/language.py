"""`LanguageTask`: inputs, targets and metrics of models that read sequences of words.

Two tasks: predicting masked words (HeteroFL, §4: 15 % of all words), and predicting every next word (FedRolex, §4).
Counts are sums over positions, so that those of many clients or workers add up exactly.
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
from nestling.tasks.task import AnyTask, Metric

IGNORED = -100  # the target of positions that do not count, as in PyTorch
TokenSums = dict[
    str, tuple[int, float, int]
]  # kind of position → their number, the sum of their losses, correct predictions

_CHUNK = 250  # sequences that one job tests; which of their words are masked depends on it
_MAX_LOGITS = 2**23  # most logits computed at once in tests: 32 MiB


@dataclass(frozen=True)
class LanguageTask(ClassLoss, AnyTask):
    """A task on words.

    Attributes
    ----------
    task
        ``"masked-word"`` or ``"next-word"``.
    mask, padding
        The numbers of the mask token and of padding; −1 for none.
    classes
        The size of the vocabulary that is predicted.
    unknown, end
        The numbers of the token for unknown words and of the end of a sentence; −1 for none.
    share
        The share of words that are masked.
    positions
        Whether the loss of the masked task is over ``"all"`` positions, as in HeteroFL's experiments, or only over
        ``"masked"`` ones.
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
    reads_classes: ClassVar[bool] = True
    local_accuracy: ClassVar[bool] = False  # there may be hundreds of thousands of clients

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return self.task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics; the first one determines the best round."""
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
        """Return why a model cannot learn to predict next words: its output must not depend on later words."""
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
        """Return sums over positions: all logits would take too much memory."""
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
        """Return the number of sequences that one job tests: a constant, as masks are drawn per job."""
        del samples
        return _CHUNK

    def test_batch(self, inputs: Tensor, most: int) -> int:
        """Return the batch size of tests: every word has as many logits as the vocabulary has words."""
        return max(1, min(most, _MAX_LOGITS // (inputs.shape[1] * self.classes)))

    def batch(self, sequences: Tensor, generator: torch.Generator, positions: str = "") -> tuple[Tensor, Tensor]:
        """Return the inputs and targets, both (N, length), of sequences (N, width).

        >>> task = LanguageTask("next-word", padding=9)
        >>> task.batch(torch.tensor([[1, 5, 2, 9]]), torch.Generator())
        (tensor([[1, 5, 2]]), tensor([[   5,    2, -100]]))
        """
        sequences = sequences.long()
        if self.task == "next-word":
            return sequences[:, :-1], _targets_at(sequences[:, 1:], sequences[:, 1:] != self.padding)
        words = sequences != self.padding
        chosen = (torch.rand(sequences.shape, generator=generator) < self.share) & words
        if not chosen.any():  # a batch without targets has no loss
            chosen.view(-1)[words.view(-1).nonzero()[0]] = True
        covered = chosen if (positions or self.positions) == "masked" else words
        return sequences.masked_fill(chosen, self.mask), _targets_at(sequences, covered)

    def kinds(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the positions of every kind that is counted separately, as masks of the shape of `targets`."""
        counted = targets != IGNORED
        if self.task == "masked-word":
            return {"all": counted, "masked": counted & (inputs == self.mask)}
        known = counted & (targets != self.unknown)
        return {"all": counted, "no_oov": known, "no_oov_eos": known & (targets != self.end)}

    def sums(self, logits: Tensor, inputs: Tensor, targets: Tensor) -> TokenSums:
        """Return the sums of a batch: logits (N, length, vocabulary), inputs and targets (N, length).

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
        """Return the metrics of sums; None for those that are not finite.

        ``loss`` and ``perplexity`` are over the positions of the training loss.
        """
        del data
        if self.task == "masked-word":
            perplexities = {f"perplexity_{kind}": _perplexity(part) for kind, part in answer.items()}
            return {**_of(answer[self.positions]), **perplexities, "accuracy_masked": _accuracy(answer["masked"])}
        accuracies = {f"accuracy_{kind}": _accuracy(part) for kind, part in answer.items() if kind != "all"}
        return {"accuracy": _accuracy(answer["all"]), **accuracies, **_of(answer["all"])}


def _targets_at(targets: Tensor, where: Tensor) -> Tensor:
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
