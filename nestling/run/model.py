"""The global model of an experiment: by name, by ``module:factory``, or the caller's own."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from nestling.axes import AxisMap, trace
from nestling.cut import plan, submodel
from nestling.data import Dataset, Text
from nestling.draws import drawing
from nestling.errors import ConfigError, nearest
from nestling.imported import imported
from nestling.nets import MODELS, build
from nestling.nets.pretrained import start_from
from nestling.run.config import Experiment
from nestling.run.texts import blind, follows
from nestling.seeds import torch_stream


def traced_model(
    experiment: Experiment, dataset: Dataset | Text, own: nn.Module | None = None
) -> tuple[nn.Module, AxisMap, str]:
    """Return the global model with its initial weights, its axes, and what was taken of a file of weights."""
    settings, example = experiment.model, dataset.example(2)
    with drawing(torch_stream(experiment.seed, "model")):
        model = own if own is not None else _build(settings.name, settings.options, dataset)
    started = start_from(model, settings.weights).summary() if settings.weights else ""
    if isinstance(dataset, Text):
        blind(model, dataset, settings.name)
    axes = trace(model, example)
    if settings.width < 1:
        model = submodel(model, axes, plan(axes, settings.width))
        axes = trace(model, example)
    return model, axes, started


def _build(name: str, options: dict[str, Any], dataset: Dataset | Text) -> nn.Module:
    """Build a model by name, or by ``module:factory``; what the data decides need not be said."""
    if isinstance(dataset, Text):
        known = follows(dataset)
    else:
        known = {"classes": dataset.classes, "channels": dataset.shape[0], "size": dataset.shape[-1]}
    if ":" in name:
        factory = imported(name, "model", ConfigError)
        takes = inspect.signature(factory).parameters
        made = factory(**{**{key: value for key, value in known.items() if key in takes}, **options})
        if not isinstance(made, nn.Module):
            raise ConfigError(f"the model {name!r} is a {type(made).__name__}, not an nn.Module")
        return made
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r}, nor is that of the form module:factory{nearest(name, MODELS)}")
    usual = MODELS[name].options
    if isinstance(dataset, Text) != bool(MODELS[name].tokens):
        kind = "words" if MODELS[name].tokens else "numbers"
        raise ConfigError(f"the model {name} reads {kind}, which {dataset.name} is not made of")
    if usual.get("positions", 0) >= known.get("positions", 0):  # a table of positions may be longer than sequences
        known.pop("positions", None)
    return build(name, **{**{key: value for key, value in known.items() if key in usual}, **options})
