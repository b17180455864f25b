"""Predicting tokens of a user's own tokenizer: every next one (`next_token`), or masked ones (`masked_token`).

Samples are token ids (N, length), alone or in a dictionary as Hugging Face's tokenizers return them (``input_ids``,
``attention_mask``). Positions without attention have no targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import ConfigError
from nestling.model_inputs import Inputs, forward
from nestling.tasks.language import IGNORED, LanguageTask, TokenSums
from nestling.tasks.task import Batch

IDS, ATTENTION = "input_ids", "attention_mask"


@dataclass(frozen=True)
class TokenTask(LanguageTask):
    """`LanguageTask` on the inputs of a user's own model; see `next_token` and `masked_token`."""

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return self.task.replace("word", "token")

    def prepare(self, samples: Any, random: torch.Generator, *, training: bool) -> Batch:
        """Return inputs and targets (N, …) of samples, whose own targets are not read.

        >>> samples = ({"input_ids": torch.tensor([[1, 5, 2, 0]])}, None)
        >>> next_token(padding=0).prepare(samples, torch.Generator(), training=True)
        ({'input_ids': tensor([[1, 5, 2]])}, tensor([[   5,    2, -100]]))
        """
        inputs, _ = samples
        ids = token_ids(inputs).long()
        words = ids != self.padding
        if isinstance(inputs, dict) and ATTENTION in inputs:
            words &= inputs[ATTENTION] != 0
        targets = ids.masked_fill(~words, IGNORED)
        if self.task == "next-word":
            shorter = {name: value[:, :-1] for name, value in _by_name(inputs).items()}
            return _same_form(inputs, shorter | {IDS: ids[:, :-1]}), targets[:, 1:]
        hidden = (torch.rand(ids.shape, generator=random) < self.share) & words
        if words.any() and not hidden.any():  # a batch without targets has no loss
            hidden.view(-1)[words.view(-1).nonzero()[0]] = True
        if training and self.positions == "masked":
            targets = targets.masked_fill(~hidden, IGNORED)
        return _same_form(inputs, _by_name(inputs) | {IDS: ids.masked_fill(hidden, self.mask)}), targets

    def objection(self, model: Callable[..., Any], example: Inputs) -> str:
        """Return why a model cannot learn to predict next tokens: its output must not depend on later ones."""
        ids = token_ids(example)
        if self.task != "next-word" or ids.shape[1] < 2 or not isinstance(model, nn.Module):
            return ""
        other = ids.clone()
        other[:, -1] = (ids[:, -1] == 0).long()
        was_training = model.training
        model.eval()
        with torch.no_grad():
            first, second = (
                forward(model, _same_form(example, _by_name(example) | {IDS: one})) for one in (ids, other)
            )
        model.train(was_training)
        if isinstance(first, Tensor) and not torch.allclose(first[:, :-1], second[:, :-1], atol=1e-5):
            return "sees the tokens that it should predict: use a causal one, or task='masked-token'"
        return ""

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """Return the shape of logits, (samples, length, classes)."""
        return (*token_ids(inputs).shape, self.classes)

    def answer(self, output: Any, inputs: Inputs, targets: Tensor) -> TokenSums:
        """Return sums over positions."""
        return self.sums(output, token_ids(inputs), targets)

    def test_batch(self, inputs: Inputs, most: int) -> int:
        """Return the batch size of tests: every position has as many logits as there are tokens."""
        return super().test_batch(token_ids(inputs), most)


def next_token(classes: int = 1, padding: int = -1, accelerate: bool = True) -> TokenTask:
    """Return the task to predict every next token.

    Parameters
    ----------
    classes
        The number of tokens; `nestling.federate` reads it off the model.
    padding
        The id of padding, which is not predicted; −1 for none, or where there is an ``attention_mask``.
    accelerate
        Whether our faster kernel may compute the loss.
    """
    return TokenTask("next-word", padding=padding, classes=classes, accelerate=accelerate)


def masked_token(
    mask: int, classes: int = 1, padding: int = -1, share: float = 0.15, accelerate: bool = True
) -> TokenTask:
    """Return the task to fill in masked tokens; the loss is over those that are masked.

    Parameters
    ----------
    mask
        The id of the mask token.
    share
        The share of tokens that are masked, drawn anew for each batch.
    classes, padding, accelerate
        As for `next_token`.

    Examples
    --------
    >>> task = masked_token(mask=9, share=0.5)
    >>> random = torch.Generator().manual_seed(0)
    >>> task.prepare((torch.tensor([[1, 2, 3]]), None), random, training=True)
    (tensor([[9, 2, 9]]), tensor([[   1, -100,    3]]))
    """
    return TokenTask(
        "masked-word", mask, padding, share=share, positions="masked", classes=classes, accelerate=accelerate
    )


def token_ids(inputs: Inputs) -> Tensor:
    """Return the token ids (N, length) of inputs."""
    ids = inputs.get(IDS) if isinstance(inputs, dict) else inputs
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() != 2:
        raise ConfigError(f"tokens are whole numbers of shape (N, length), alone or as {IDS!r} in a dictionary")
    return ids


def _by_name(inputs: Inputs) -> dict[str, Tensor]:
    return dict(inputs) if isinstance(inputs, dict) else {IDS: inputs}


def _same_form(inputs: Inputs, tensors: dict[str, Tensor]) -> Inputs:
    return tensors if isinstance(inputs, dict) else tensors[IDS]
