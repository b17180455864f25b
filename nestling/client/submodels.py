"""Sub-models for training and tests: built once per shape, and loaded with weights for every job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nestling.cut import Plan, submodel
from nestling.cut.extract import State
from nestling.draws import process_is_ours
from nestling.kernels.batch_norms import keep_frozen
from nestling.kernels.memory_format import set_memory_format
from nestling.kernels.seeded_dropout import Draws, find_draws, seed_dropout
from nestling.methods.context import Setup
from nestling.model_inputs import arguments, chosen
from nestling.safe_kernels import guard

_MAX_SHAPES = 16  # most sub-models in the cache
_CPU = torch.device("cpu")


def shape_of(setup: Setup, plan: Plan, ratio: float) -> Hashable:
    """Return a key that is equal for clients that can use the same module."""
    sizes = tuple((name, sum(stop - start for start, stop in runs)) for name, runs in plan.runs.items())
    return sizes, plan.blocks, ratio if setup.method.per_ratio else None


def build(setup: Setup, plan: Plan, ratio: float, device: torch.device = _CPU) -> nn.Module:
    """Build the sub-model of a plan on a device, without loading weights."""
    model = build_plain(setup, plan, ratio)
    seed_dropout(model)
    if device.type == "cpu" and setup.accelerate:  # the formats were measured on CPUs only
        set_memory_format(model, chosen(setup.example, slice(1)))
    return model.to(device)


def build_plain(setup: Setup, plan: Plan, ratio: float) -> nn.Module:
    """Build the sub-model of a plan with PyTorch's memory format and kernels, except unsafe ones."""
    model = submodel(setup.model, setup.cut_axes, plan)
    args, kwargs = arguments(chosen(setup.example, slice(1)))
    guard(model, *args, **kwargs)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in setup.user_frozen)
    keep_frozen(model)
    setup.method.build(model, setup, ratio)
    return model


@dataclass(frozen=True, eq=False)
class Submodel:
    """A sub-model, its state by name, whether it draws random numbers by itself, and a cache for losses."""

    model: nn.Module
    tensors: dict[str, Tensor]
    draws: Draws
    workspace: dict[Any, Any] = field(default_factory=dict)


class Submodels:
    """A cache of the sub-models of a worker on its device."""

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self._setup, self._device = setup, device
        self._cache: OrderedDict[Hashable, Submodel] = OrderedDict()

    @torch.no_grad()
    def get(self, plan: Plan, state: State, ratio: float = 1.0) -> Submodel:
        """Return the sub-model of a plan with the weights in `state`; if that is empty, with its previous weights."""
        key = shape_of(self._setup, plan, ratio)
        if key not in self._cache:
            model = build(self._setup, plan, ratio, self._device)
            tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
            self._cache[key] = Submodel(model, tensors, self._draws(model))
        self._cache.move_to_end(key)
        while len(self._cache) > _MAX_SHAPES:
            self._cache.popitem(last=False)
        cached = self._cache[key]
        for name, tensor in cached.tensors.items() if state else ():
            tensor.copy_(state[name])  # `load_state_dict` does the same, and takes as long as a step of a small model
        return cached

    def _draws(self, model: nn.Module) -> Draws:
        if process_is_ours() or self._device.type != "cpu":  # PyTorch's own generators are seeded there
            return Draws(training=False, testing=False)
        return find_draws(model, self._setup.example)
