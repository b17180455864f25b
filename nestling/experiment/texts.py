"""Texts in an experiment: opened, dealt out, and whether the model may see what it should predict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nestling.data import Text, TextShares, load_text, share
from nestling.data.text.corpus import fitting, gathered
from nestling.errors import ConfigError
from nestling.settings import Experiment


def open_text(experiment: Experiment) -> Text:
    """Open the text that an experiment names."""
    data = experiment.data
    task = None if data.task == "default" else data.task
    return load_text(data.name, data.dir or None, task=task, vocabulary=data.vocabulary, length=data.length)


def deal(experiment: Experiment, text: Text) -> TextShares:
    """Deal a text out to the clients of an experiment."""
    data = experiment.data
    for name, usual in (("samples", 0), ("unlabelled", 0), ("unlabelled_test", False)):
        if getattr(data, name) != usual:
            raise ConfigError(f"data.{name} is for images; of a text, data.most_per_client limits what is used")
    return share(
        text,
        experiment.fleet.clients,
        data.partition,
        minimum=data.minimum,
        most=data.most_per_client,
        seed=experiment.seed,
    )


def held_out(experiment: Experiment, text: Text, part: str) -> Tensor:
    """Return the sequences to test on, or to choose the best round by: as many as evaluate.samples says."""
    if part == "validation" and not experiment.data.validation:
        return torch.empty(0, text.width, dtype=torch.long)
    parts = text.test if part == "test" else text.validation
    checked = (fitting(sequences, text.form, f"the {part} part of {text.name}") for sequences in parts)
    found = gathered(checked, experiment.evaluate.samples)
    if not len(found):
        raise ConfigError(f"{text.name} holds nothing for {part}: leave data.validation at 0")
    return found


def follows(text: Text) -> dict[str, Any]:
    """Return what a text decides of a model's options."""
    return {"vocabulary": text.classes, "special": text.special, "positions": text.length}


def blind(model: nn.Module, text: Text, name: str) -> None:
    """Raise where a model that should predict next words sees them: what it says must not depend on later words."""
    if text.task != "next-word" or text.length < 2:
        return
    one = text.example(1)
    other = one.clone()
    other[:, -1] = 1
    was = model.training
    model.eval()
    with torch.no_grad():
        said = [model(ids) for ids in (one, other)]
    model.train(was)
    if isinstance(said[0], Tensor) and not torch.equal(said[0][:, :-1], said[1][:, :-1]):
        raise ConfigError(
            f"the model {name} sees the words that it should predict: use a causal one (model.options.causal=true), "
            "or data.task=masked-word"
        )
