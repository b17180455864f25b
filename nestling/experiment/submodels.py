"""Sub-models kept ready to train and to be tested: built once per shape, and given weights again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nestling.cut import Plan
from nestling.draws import process_is_ours
from nestling.experiment.built import built, shape_of
from nestling.experiment.jobs import State
from nestling.experiment.setting import Setting
from nestling.kernels.seeded_dropout import Draws, find_draws

_SHAPES = 16  # that are kept


@dataclass(frozen=True, eq=False)
class Kept:
    """A sub-model, its state by name, whether it draws random numbers by itself, and room for what losses keep."""

    model: nn.Module
    tensors: dict[str, Tensor]
    draws: Draws
    scratch: dict[Any, Any] = field(default_factory=dict)


class Models:
    """The sub-models of a worker.

    Parameters
    ----------
    setting
        The experiment.
    device
        Where they compute.
    """

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self._setting, self._device = setting, device
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()

    @torch.no_grad()
    def get(self, plan: Plan, state: State, ratio: float = 1.0) -> Kept:
        """Return the sub-model of a plan with the weights in `state`; without any, with whatever it had."""
        key = shape_of(self._setting, plan, ratio)
        if key not in self._kept:
            model = built(self._setting, plan, ratio, self._device)
            tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
            self._kept[key] = Kept(model, tensors, self._draws(model))
        self._kept.move_to_end(key)
        while len(self._kept) > _SHAPES:
            self._kept.popitem(last=False)
        kept = self._kept[key]
        for name, tensor in kept.tensors.items() if state else ():
            tensor.copy_(state[name])  # `load_state_dict` does the same, and takes as long as a step of a small model
        return kept

    def _draws(self, model: nn.Module) -> Draws:
        if process_is_ours() or self._device.type != "cpu":  # PyTorch's own generators are seeded there
            return Draws(training=False, testing=False)
        return find_draws(model, self._setting.example(2))
