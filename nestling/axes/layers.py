"""Correct the attributes in which layers store their sizes, after their tensors were cut.

There is one small entry per type of layer. Layers of torch are known by class; the attention modules of other
libraries store numbers such as ``head_dim`` in attributes, which are found by their usual names and corrected from the
dims of the projections below them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nestling.axes.adapters import adjust_adapters
from nestling.axes.dims import Dim, Dims, Fixed, Leaf, Product, Sum, factors
from nestling.errors import BuildError

Kept = Callable[[Dim], int]
Adjust = Callable[[Any, Mapping[str, Dims], Kept], None]


def adjust(module: nn.Module, dims: Mapping[str, Dims], kept: Kept) -> None:
    """Correct the sizes that `module` stores.

    `dims` are the dims of the whole model's tensors below this module, by their names relative to it; ``kept(dim)`` is
    the number of units left. The module's own tensors have already been cut.
    """
    adjust_adapters(module)
    for kind, entry in _ENTRIES.items():
        if isinstance(module, kind):
            entry(module, dims, kept)
            return
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # transformers': a linear layer, transposed
        module.nx, module.nf = module.weight.shape  # type: ignore[assignment, misc]
        return
    _attention(module, dims, kept)


def _dims_of(dims: Mapping[str, Dims], name: str) -> Dims:
    """Return the dims of a tensor of a module, which a parametrisation may have moved."""
    for path in (name, f"parametrizations.{name}.original", f"parametrizations.{name}.original1"):
        if path in dims:
            return dims[path]
    raise BuildError(f"the layer's tensor {name!r} is not among {sorted(dims)}")


def _outer(dim: Dim, size: int, kept: Kept) -> int:
    """Return what is left of the outer factor `size` of `dim`."""
    if dim.size == size:
        return kept(dim)
    if size == 1:
        return 1
    inner = dim.size // size
    if isinstance(dim, Sum):
        return sum(_outer(part, part.size // inner, kept) for part in dim.parts)
    left, whole = 1, 1
    for part in factors(dim):
        if whole == size:
            break
        if whole * part.size > size:  # the border is inside a part, which therefore cannot be cut
            return left * (size // whole)
        left, whole = left * kept(part), whole * part.size
    return left


def _linear(layer: nn.Linear, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.out_features, layer.in_features = layer.weight.shape


def _conv(layer: nn.modules.conv._ConvNd, dims: Mapping[str, Dims], kept: Kept) -> None:
    if layer.groups > 1:
        layer.groups = _outer(_dims_of(dims, "weight")[0], layer.groups, kept)
    sizes = (layer.weight.shape[0], layer.weight.shape[1] * layer.groups)
    layer.in_channels, layer.out_channels = sizes if layer.transposed else sizes[::-1]


class _PlainInstanceNorm(nn.modules.instancenorm._InstanceNorm):
    """An instance norm without parameters, for any number of channels."""

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x, eps=self.eps)


def _batch_norm(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not (layer.affine or layer.track_running_stats):
        layer.__class__ = _PlainInstanceNorm
    for tensor in (layer.weight, layer.running_mean):
        if tensor is not None:
            layer.num_features = len(tensor)


class _AnyInstanceNorm(nn.GroupNorm):
    """A group norm without parameters, each channel a group, for any number of channels."""

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, x.shape[1], None, None, self.eps)


def _group_norm(layer: nn.GroupNorm, dims: Mapping[str, Dims], kept: Kept) -> None:
    if layer.affine:
        if layer.num_groups > 1:
            layer.num_groups = _outer(_dims_of(dims, "weight")[0], layer.num_groups, kept)
        layer.num_channels = len(layer.weight)
    elif layer.num_groups == layer.num_channels:
        layer.__class__ = _AnyInstanceNorm


class _AnyLayerNorm(nn.LayerNorm):
    """A layer norm without parameters, for any width."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-len(self.normalized_shape) :], None, None, self.eps)


class _AnyRMSNorm(nn.RMSNorm):
    """An RMS norm without parameters, for any width."""

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


def _recurrent_cell(layer: Any, _dims: Mapping[str, Dims], _kept: Kept) -> None:
    layer.input_size, layer.hidden_size = layer.weight_ih.shape[1], layer.weight_hh.shape[1]


def _transformer(layer: Any, dims: Mapping[str, Dims], kept: Kept) -> None:
    layer.d_model = kept(dims["encoder.layers.0.linear1.weight"][1])


def _multihead(layer: nn.MultiheadAttention, dims: Mapping[str, Dims], kept: Kept) -> None:
    inner = next(weight for name, weight in dims.items() if name.startswith("out_proj.") and len(weight) == 2)
    layer.num_heads = _outer(inner[1], layer.num_heads, kept)
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
    nn.RNNCellBase: _recurrent_cell,
    nn.Transformer: _transformer,
    nn.MultiheadAttention: _multihead,
    nn.PReLU: _prelu,
}

# Attributes in which attention modules of other libraries store their sizes.
_HEADS = ("heads", "num_heads", "n_heads", "n_head", "num_attention_heads", "num_key_value_heads", "num_kv_heads")
WIDTHS = ("head_dim", "attention_head_size", "key_value_proj_dim", "dim_per_head", "d_kv")
_INNERS = ("all_head_size", "inner_dim", "split_size", "embed_dim", "hidden_size", "dim")


def _attention(module: nn.Module, dims: Mapping[str, Dims], kept: Kept) -> None:
    """Correct the numbers of heads, head widths and inner widths of an attention module."""
    if not any(name in vars(module) for name in (*_HEADS, *WIDTHS, *_INNERS)):
        return
    near = [dim for name in dims if name.count(".") <= 1 for dim in dims[name]]
    left: dict[tuple[str, int], int] = {}  # the first entry counts: projections come before what follows them

    def note(names: tuple[str, ...], parts: Sequence[Dim]) -> None:
        whole, rest = math.prod(part.size for part in parts), math.prod(kept(part) for part in parts)
        for name in names:
            left.setdefault((name, whole), rest)

    for product in _products(near):
        every = list(factors(product))
        parts = list(dropwhile(lambda part: isinstance(part, Fixed), every))  # (3 heads dim): stacked
        for border in range(1 if parts == every else 0, len(parts)):
            note(_HEADS, parts[:border])
            note(WIDTHS, parts[border:])
        note(_INNERS, parts)
    for dim in near:
        if isinstance(dim, Leaf):  # one head alone is no product
            note((*WIDTHS, *_INNERS), [dim])
    for name in (*_HEADS, *WIDTHS, *_INNERS):
        old = vars(module).get(name)
        if type(old) is int:
            setattr(module, name, left.get((name, old), old))


def _products(dims: Sequence[Dim]) -> list[Product]:
    products: list[Product] = []
    todo: list[Dim] = list(dims)
    while todo:
        dim = todo.pop(0)
        if isinstance(dim, Product):
            products.append(dim)
        elif isinstance(dim, Sum):
            todo += dim.parts
    return products
