"""Low-rank adapters: which factors belong together, and the ranks that their layers store.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.

An adapter adds scaling · B A x to the output of a layer (§4.1). Its factors are tensors called ``lora_A``, (rank, …),
and ``lora_B``, (outputs, rank, …), as in peft and in the authors' loralib. Their common dim, the rank, is an axis.

A sub-model with a part of the rank computes a part of the sum over the rank: the scaling stays that of the whole
adapter. With peft, the layer's ``lora_alpha`` and the configuration are set such that α/r, or α/√r with
``use_rslora``, is that scaling. What clients of different ranks train is then on one scale, and can be merged.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nestling.axes.axismap import AxisMap
from nestling.axes.dims import Fixed, Leaf

_DOWN = re.compile(r"(?P<layer>^|.*\.)lora_(?P<kind>embedding_)?A(?P<adapter>\..+)?$")  # the factor A, or its module


@dataclass(frozen=True)
class Adapter:
    """The names of the factors A (rank, …) and B (outputs, rank, …) of one adapter, and of its rank; "" for rank 1."""

    a: str
    b: str
    rank: str


def adapters(axes: AxisMap) -> tuple[Adapter, ...]:
    """Return the adapters of a model whose rank can be cut, or is 1.

    >>> import torch, nestling
    >>> from nestling.nets.adapted import AdaptedLinear
    >>> axes = nestling.trace(AdaptedLinear(6, 4, rank=2), torch.zeros(1, 6))
    >>> adapters(axes)
    (Adapter(a='lora_A', b='lora_B', rank='lora.rank'),)
    """
    matches = []
    for a, dims in axes.dims.items():
        b = other_factor(a)
        if b not in axes.dims or a in axes.tied or len(dims) < 2 or len(axes.dims[b]) < 2:
            continue
        rank = dims[0]
        if rank != axes.dims[b][1]:
            continue
        if rank == Fixed(1):
            matches.append(Adapter(a, b, ""))
        elif isinstance(rank, Leaf) and rank.name in axes.axes:
            matches.append(Adapter(a, b, rank.name))
    return tuple(matches)


def other_factor(name: str) -> str:
    """Return the name of the factor B to that of a factor A; empty if `name` is no factor A.

    >>> other_factor("h.0.attn.lora_A.default.weight")
    'h.0.attn.lora_B.default.weight'
    """
    match = _DOWN.match(name)
    return f"{match['layer']}lora_{match['kind'] or ''}B{match['adapter'] or ''}" if match else ""


def rank_name(module: str) -> str:
    """Return the name of the axis that the module, or parameter, A of an adapter produces; other names unchanged.

    >>> rank_name("h.0.attn.lora_A.default"), rank_name("lora_A"), rank_name("h.0.mlp.lora_A.summary")
    ('h.0.attn.lora.rank', 'lora.rank', 'h.0.mlp.lora.summary.rank')
    """
    match = _DOWN.match(module)
    if not match:
        return module
    adapter = (match["adapter"] or "").removesuffix(".default")
    return f"{match['layer']}lora{adapter}.rank"


def adjust_adapters(module: nn.Module) -> None:
    """Correct the ranks and α that a layer of peft, or its configuration, stores; factors have already been cut."""
    stored = vars(module)
    if all(isinstance(stored.get(name), dict) for name in ("r", "lora_alpha", "scaling")):
        _adjust_layer(module)
    elif isinstance(stored.get("peft_config"), dict):
        _adjust_configs(module, stored["peft_config"])


def _adjust_layer(layer: Any) -> None:
    for name, whole in layer.r.items():
        a = _factor(layer, "A", name)
        if a is None:
            continue
        share, alpha = len(a) / whole, layer.lora_alpha[name]
        if not math.isclose(layer.scaling[name], alpha / whole) and math.isclose(
            layer.scaling[name], alpha / math.sqrt(whole)
        ):
            share = math.sqrt(share)  # use_rslora
        layer.r[name], layer.lora_alpha[name] = len(a), _number(alpha * share)
        b = _factor(layer, "B", name)
        if b is not None:
            layer.in_features, layer.out_features = a.shape[1], b.shape[0]


def _adjust_configs(module: nn.Module, configs: dict[str, Any]) -> None:
    """Make a configuration describe the layers below, so that peft saves and loads a sub-model's adapter."""
    layers = {path.removeprefix("model."): layer for path, layer in module.named_modules() if _stores_ranks(layer)}
    for layer in layers.values():
        _adjust_layer(layer)
    for name, config in configs.items():
        ranks: dict[str, int] = {path: layer.r[name] for path, layer in layers.items() if name in layer.r}
        alphas: dict[str, Any] = {path: layers[path].lora_alpha[name] for path in ranks}
        if not ranks:
            continue
        alike = len({*ranks.values()}) == 1 and len({*alphas.values()}) == 1
        config.r, config.lora_alpha = max(ranks.values()), max(alphas.values())
        config.rank_pattern, config.alpha_pattern = ({}, {}) if alike else (ranks, alphas)


def _stores_ranks(layer: Any) -> bool:
    return isinstance(vars(layer).get("r"), dict) and isinstance(vars(layer).get("lora_alpha"), dict)


def _factor(layer: Any, letter: str, adapter: str) -> Tensor | None:
    """Return a factor of one of a layer's adapters: the weight of a module or, for embeddings, a parameter."""
    modules, tensors = getattr(layer, f"lora_{letter}", {}), getattr(layer, f"lora_embedding_{letter}", {})
    if adapter in modules:
        weight: Tensor = modules[adapter].weight
        return weight
    return tensors.get(adapter)


def _number(value: float) -> float:
    return int(value) if value == int(value) else value
