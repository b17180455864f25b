"""What a layer writes down about its own sizes, corrected after its tensors were cut.

One small entry per type of layer. Layers of torch are known by class; for the attention modules of other libraries,
whose code reads numbers such as ``head_dim`` from attributes, those attributes are found by their usual names and
corrected from the dims of the projections below them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nestling.axes.dims import Dim, Dims, Product, Sum, factors

Kept = Callable[[Dim], int]
Adjust = Callable[[Any, Mapping[str, Dims], Kept], None]


def adjust(module: nn.Module, dims: Mapping[str, Dims], kept: Kept) -> None:
    """Correct the sizes that `module` has written down.

    `dims` are the dims of the whole model's tensors below this module, by their names from here; ``kept(dim)`` is
    how many of its units are left. The module's own tensors have been cut already.
    """
    for kind, entry in _ENTRIES.items():
        if isinstance(module, kind):
            entry(module, dims, kept)
            return
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # transformers': a linear layer, transposed
        module.nx, module.nf = module.weight.shape  # type: ignore[assignment, misc]
        return
    _attention(module, dims, kept)


def _outer(dim: Dim, size: int, kept: Kept) -> int:
    """What is left of the outermost factors of `dim` that together have `size` units."""
    left, whole = 1, 1
    for part in factors(dim):
        if whole == size:
            break
        left, whole = left * kept(part), whole * part.size
    return left


def _linear(layer: nn.Linear, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.out_features, layer.in_features = layer.weight.shape


def _conv(layer: nn.modules.conv._ConvNd, dims: Mapping[str, Dims], kept: Kept) -> None:
    if layer.groups > 1:
        layer.groups = _outer(dims["weight"][0], layer.groups, kept)
    sizes = (layer.weight.shape[0], layer.weight.shape[1] * layer.groups)
    layer.in_channels, layer.out_channels = sizes if layer.transposed else sizes[::-1]


def _batch_norm(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    for tensor in (layer.weight, layer.running_mean):
        if tensor is not None:
            layer.num_features = len(tensor)


def _group_norm(layer: nn.GroupNorm, dims: Mapping[str, Dims], kept: Kept) -> None:
    if layer.weight is not None:
        if layer.num_groups > 1:
            layer.num_groups = _outer(dims["weight"][0], layer.num_groups, kept)
        layer.num_channels = len(layer.weight)


class _AnyLayerNorm(nn.LayerNorm):
    """A layer norm without parameters: it normalises whatever width it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-len(self.normalized_shape) :], None, None, self.eps)


class _AnyRMSNorm(nn.RMSNorm):
    """An RMS norm without parameters: it normalises whatever width it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-len(self.normalized_shape) :], None, self.eps)


def _layer_norm(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    if layer.weight is not None:
        layer.normalized_shape = tuple(layer.weight.shape)
    else:
        layer.__class__ = _AnyLayerNorm if isinstance(layer, nn.LayerNorm) else _AnyRMSNorm


def _embedding(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.num_embeddings, layer.embedding_dim = layer.weight.shape


def _recurrent(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.input_size = layer.weight_ih_l0.shape[1]
    layer.hidden_size = layer.weight_hh_l0.shape[1]
    if layer.proj_size:
        layer.proj_size, layer.hidden_size = layer.weight_hr_l0.shape


def _multihead(layer: nn.MultiheadAttention, dims: Mapping[str, Dims], kept: Kept) -> None:
    layer.num_heads = _outer(dims["out_proj.weight"][1], layer.num_heads, kept)
    layer.embed_dim = layer.out_proj.weight.shape[0]
    layer.head_dim = layer.embed_dim // layer.num_heads
    layer.kdim = layer.vdim = layer.embed_dim
    if "in_proj_weight" not in dims:
        layer.kdim, layer.vdim = layer.k_proj_weight.shape[1], layer.v_proj_weight.shape[1]


def _prelu(layer: nn.PReLU, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.num_parameters = len(layer.weight)


_ENTRIES: dict[type, Adjust] = {
    nn.Linear: _linear,
    nn.modules.conv._ConvNd: _conv,
    nn.modules.batchnorm._NormBase: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding,
    nn.RNNBase: _recurrent,
    nn.MultiheadAttention: _multihead,
    nn.PReLU: _prelu,
}

# Attributes by which attention modules of other libraries know their sizes.
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "num_key_value_heads", "num_kv_heads")
_WIDTHS = ("head_dim", "attention_head_size", "key_value_proj_dim", "dim_per_head", "d_kv")
_INNERS = ("all_head_size", "inner_dim", "split_size", "embed_dim", "hidden_size", "dim")


def _attention(module: nn.Module, dims: Mapping[str, Dims], kept: Kept) -> None:
    """Correct the numbers of heads, widths of a head and inner widths of an attention module."""
    products = [product for name in dims if name.count(".") <= 1 for product in _products(dims[name])]
    if not products:
        return
    sizes: dict[tuple[str, int], set[int]] = {}

    def note(names: tuple[str, ...], whole: int, left: int) -> None:
        for name in names:
            sizes.setdefault((name, whole), set()).add(left)

    for product in products:
        parts = list(factors(product))
        for split in range(1, len(parts)):
            for names, side in ((_HEADS, parts[:split]), (_WIDTHS, parts[split:])):
                note(names, math.prod(part.size for part in side), math.prod(kept(part) for part in side))
        note(_INNERS, product.size, kept(product))
    for (name, whole), left in sizes.items():
        if type(vars(module).get(name)) is int and getattr(module, name) == whole and len(left) == 1:
            setattr(module, name, next(iter(left)))


def _products(dims: Dims) -> list[Product]:
    found: list[Product] = []
    todo: list[Dim] = list(dims)
    while todo:
        dim = todo.pop()
        if isinstance(dim, Product):
            found.append(dim)
        elif isinstance(dim, Sum):
            todo += dim.parts
    return found
