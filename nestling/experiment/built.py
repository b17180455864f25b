"""Sub-models as clients train them: built once per shape."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import nn

from nestling.cut import Plan, submodel
from nestling.experiment.setting import Setting
from nestling.kernels.batch_norms import keep_frozen
from nestling.kernels.memory_format import set_memory_format
from nestling.kernels.seeded_dropout import seed_dropout
from nestling.methods.parts.scaler import scale
from nestling.methods.parts.static_norms import make_static
from nestling.safe_kernels import guard

_CPU = torch.device("cpu")


def shape_of(setting: Setting, plan: Plan, ratio: float) -> Hashable:
    """What two clients must have in common for one module to serve both."""
    sizes = tuple((name, sum(stop - start for start, stop in runs)) for name, runs in plan.runs.items())
    return sizes, plan.blocks, ratio if setting.method.scaler else None


def built(setting: Setting, plan: Plan, ratio: float, device: torch.device = _CPU) -> nn.Module:
    """Build the sub-model of a plan where it will be, ready to be given weights and trained."""
    model = plain(setting, plan, ratio)
    seed_dropout(model)
    if device.type == "cpu" and setting.experiment.accelerate != "off":  # what is fast was measured there
        set_memory_format(model, setting.example(1))
    return model.to(device)


def plain(setting: Setting, plan: Plan, ratio: float) -> nn.Module:
    """Build the sub-model of a plan, which lies in memory and computes as PyTorch does by itself, yet safely."""
    model = submodel(setting.model, setting.cut_axes, plan)
    guard(model, setting.example(1))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in setting.frozen and name not in setting.user_frozen)
    keep_frozen(model)
    if setting.method.scaler:
        scale(model, setting.axes, ratio)
    if setting.method.static:
        make_static(model)
    return model
