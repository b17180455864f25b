"""The effect of tensor operations on dims: one small rule per family of operations.

A rule takes the tracer, the operation's result and its arguments by name, reads the dims of the inputs, unifies those
that must be cut together and sets the dims of the outputs. An operation without a rule freezes all dims it touches, and
so does a rule that raises `Clash` for a case it cannot follow. The rules of shape-changing operations are in
`rules_shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nestling.axes.shapes import tensors_in
from nestling.axes.unify import Clash, Node, factor, freeze, product, segment, unify
from nestling.torch_private import OpOverload

Args = dict[str, Any]


class DimTracker(Protocol):
    """The part of the tracer that rules use."""

    def get(self, tensor: Tensor) -> list[Node]:
        """Return the dims of `tensor`."""

    def set(self, tensor: Tensor, dims: Sequence[Node]) -> None:
        """Set the dims of `tensor`."""

    def produces(self, node: Node, by: Tensor, name_it: bool = True) -> None:
        """Record that the parameter `by` (or a view of it) produces the dim `node`, and optionally names it."""

    def freeze_on_use(self, tensor: Tensor, node: Node, why: str) -> None:
        """Freeze `node` once something is computed from `tensor`, but not if only its shape is read."""


Rule = Callable[[DimTracker, Any, Args], None]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operations in `names`, separated by spaces."""

    def register(function: Rule) -> Rule:
        for name in names.split():
            RULES[name] = function
        return function

    return register


def unify_broadcast(a: Node, b: Node) -> Node:
    """Unify two dims that broadcast against each other."""
    if a.size == 1 or b.size == 1:
        return b if a.size == 1 else a
    return unify(a, b)


def constant(size: int, why: str = "meets a constant of the model's code") -> Node:
    """Return a dim that cannot be cut."""
    return Node(size, why)


@rule(
    "native_dropout clone _to_copy detach alias lift_fresh lift copy_ fill_ zero_ masked_fill masked_fill_ where"
    " bernoulli bernoulli_ uniform_ normal_ zeros_like ones_like full_like empty_like rand_like randn_like"
    " _softmax _log_softmax _safe_softmax contiguous rrelu_with_noise _prelu_kernel native_dropout_backward"
)
def pointwise(t: DimTracker, out: Any, args: Args) -> None:
    """Every element depends on the elements at the same place: dims that broadcast together are unified."""
    results = tensors_in(out)
    dims = [Node(size) if size == 1 else None for size in results[0].shape]
    for tensor in tensors_in(args):
        offset = len(dims) - tensor.dim()
        for place, node in enumerate(t.get(tensor), start=offset):
            if node.size != 1:
                t.produces(node, tensor, name_it=False)
                old = dims[place]
                dims[place] = node if old is None else unify_broadcast(old, node)
    for result in results:
        if result.shape == results[0].shape:
            t.set(result, [node or constant(size) for node, size in zip(dims, result.shape, strict=True)])


@rule("zeros ones full empty rand randn new_zeros new_ones new_full new_empty empty_strided")
def filled(t: DimTracker, out: Any, _args: Args) -> None:
    """One value (or noise) everywhere, such as the initial state of a recurrent layer: it fits any axis.

    Its size may be hard-coded, so a smaller model may fail to run; but it cannot give wrong results.
    """
    t.set(out, [Node(size) for size in out.shape])


@rule("arange linspace eye tril_indices triu_indices scalar_tensor")
def numbered(t: DimTracker, out: Any, _args: Args) -> None:
    """Number sequences made by the model's code: their size is a constant."""
    t.set(out, [constant(size) for size in out.shape])


@rule("mean sum amax amin prod any all var std var_mean std_mean logsumexp linalg_vector_norm norm aminmax")
def reduction(t: DimTracker, out: Any, args: Args) -> None:
    """Dims are reduced regardless of their order: nothing to couple."""
    x = args.get("self", args.get("input"))
    if x is None:
        raise Clash("a reduction of an unknown form")
    dim = args.get("dim")
    places = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    gone = {place % x.dim() for place in places} if x.dim() else set()
    nodes = t.get(x)
    for result in tensors_in(out):
        if result.dim() == x.dim():
            t.set(result, [Node(1) if k in gone else node for k, node in enumerate(nodes)])
        else:
            t.set(result, [node for k, node in enumerate(nodes) if k not in gone])


@rule("max min median mode argmax argmin kthvalue")
def extreme(t: DimTracker, out: Any, args: Args) -> None:
    """The extreme value along a dim, and its index, which may be used for a lookup: the dim is frozen."""
    if "other" in args:
        pointwise(t, out, args)
        return
    nodes = t.get(args["self"])
    if args.get("dim") is not None and nodes:
        freeze(nodes[args["dim"]], "units are numbered (max, argmax, …)")
    elif len(tensors_in(out)) > 1 or not out.is_floating_point():
        for node in nodes:
            freeze(node, "units are numbered (max, argmax, …)")
    reduction(t, out, args)


@rule("cumsum cumprod logcumsumexp cummax cummin sort argsort topk")
def ordered(t: DimTracker, out: Any, args: Args) -> None:
    """Operations that depend on, or create, an order along a dim: the dim is frozen."""
    nodes = list(t.get(args["self"]))
    dim = args.get("dim", -1) % len(nodes)
    freeze(nodes[dim], "order matters (running sum, sort, …)")
    for result in tensors_in(out):
        t.set(result, [*nodes[:dim], constant(result.shape[dim], "sorted"), *nodes[dim + 1 :]])


@rule("glu")
def gated(t: DimTracker, out: Any, args: Args) -> None:
    """One half of a dim gates the other: the halves are unified."""
    nodes = list(t.get(args["self"]))
    dim = args.get("dim", -1) % len(nodes)
    nodes[dim] = unify(*segment(nodes[dim], [out.shape[dim]] * 2))
    t.set(out, nodes)


@rule("mm bmm matmul")
def matmul(t: DimTracker, out: Any, args: Args) -> None:
    """Rows of the first, columns of the second; the dims summed over are unified."""
    x, y = args["self"], args["mat2"] if "mat2" in args else args["other"]
    a, b = t.get(x), t.get(y)
    unify(a[-1], b[-2])
    batch = [unify_broadcast(p, q) for p, q in zip(a[:-2], b[:-2], strict=True)]
    t.produces(a[-2], x, name_it=False)
    t.produces(b[-1], y)
    t.set(out, [*batch, a[-2], b[-1]])


@rule("addmm baddbmm addbmm")
def added_matmul(t: DimTracker, out: Any, args: Args) -> None:
    """A matrix product with a bias that broadcasts onto it."""
    names = ("mat1", "mat2") if "mat1" in args else ("batch1", "batch2")
    matmul(t, out, {"self": args[names[0]], "mat2": args[names[1]]})
    pointwise(t, out, {"bias": args["self"], "product": out})


@rule("mv")
def matrix_vector(t: DimTracker, out: Any, args: Args) -> None:
    """A matrix times a vector."""
    a, b = t.get(args["self"]), t.get(args["vec"])
    unify(a[1], b[0])
    t.set(out, [a[0]])


@rule("dot vdot")
def dot(t: DimTracker, out: Any, args: Args) -> None:
    """Two vectors summed over their one dim."""
    unify(t.get(args["self"])[0], t.get(args["tensor"] if "tensor" in args else args["other"])[0])
    t.set(out, [])


@rule("linear")
def linear(t: DimTracker, out: Any, args: Args) -> None:
    """An affine layer on backends that do not decompose it."""
    a, w = t.get(args["input"]), t.get(args["weight"])
    unify(a[-1], w[1])
    if args.get("bias") is not None:
        unify(w[0], t.get(args["bias"])[0])
    t.produces(w[0], args["weight"])
    t.set(out, [*a[:-1], w[0]])


@rule("embedding")
def embedding(t: DimTracker, out: Any, args: Args) -> None:
    """Rows are looked up by number: the vocabulary is frozen, the columns are an axis."""
    rows, columns = t.get(args["weight"])
    freeze(rows, "vocabulary: rows are looked up by number")
    t.produces(columns, args["weight"])
    t.set(out, [*t.get(args["indices"]), columns])


@rule("convolution _convolution")
def convolution(t: DimTracker, out: Any, args: Args) -> None:
    """Channels in and out; with groups, both are (groups, channels of a group)."""
    x, weight, bias, groups = args["input"], args["weight"], args["bias"], args["groups"]
    a, w = t.get(x), t.get(weight)
    for node in [*a[2:], *w[2:]]:
        freeze(node, "kernel" if node in w else "spatial")
    channels = a[1]
    if args["transposed"]:  # weight: (in, out / groups, kernel)
        unify(channels, w[0])
        output = w[1] if groups == 1 else product([_grouped(channels, groups)[0], w[1]])
    elif groups == 1:  # weight: (out, in, kernel)
        unify(channels, w[1])
        output = w[0]
    else:  # weight: (out, in / groups, kernel)
        outer, inner = _grouped(channels, groups)
        unify(inner, w[1])
        output = w[0]
        unify(_grouped(output, groups)[0], outer)
    if bias is not None:
        output = unify(output, t.get(bias)[0])
    t.produces(output, weight)
    t.set(out, [a[0], output, *(constant(size, "spatial") for size in out.shape[2:])])


def _grouped(node: Node, groups: int) -> tuple[Node, Node]:
    return factor(node, groups, ("groups", "group_width"))


@rule(
    "native_batch_norm batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm"
    " _native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update miopen_batch_norm"
)
def batch_norm(t: DimTracker, out: Any, args: Args) -> None:
    """One scale, shift, mean and variance per channel."""
    x = args["input"]
    nodes = list(t.get(x))
    for name in ("weight", "bias", "running_mean", "running_var"):
        if args.get(name) is not None:
            nodes[1] = unify(nodes[1], t.get(args[name])[0])
    for result in tensors_in(out):
        if result.shape == x.shape:
            t.set(result, nodes)


@rule("native_layer_norm layer_norm rms_norm _fused_rms_norm")
def layer_norm(t: DimTracker, out: Any, args: Args) -> None:
    """Statistics over the last dims, whose order does not matter."""
    nodes = list(t.get(args["input"]))
    for name in ("weight", "bias"):
        if args.get(name) is not None:
            affine = t.get(args[name])
            start = len(nodes) - len(affine)
            nodes[start:] = [unify(a, b) for a, b in zip(nodes[start:], affine, strict=True)]
    t.set(tensors_in(out)[0], nodes)


@rule("native_group_norm")
def group_norm(t: DimTracker, out: Any, args: Args) -> None:
    """Statistics within each group of channels: channels are (groups, channels of a group)."""
    x, groups = args["input"], args["group"]
    nodes = list(t.get(x))
    for name in ("weight", "bias"):
        if args.get(name) is not None:
            nodes[1] = unify(nodes[1], t.get(args[name])[0])
    if groups not in (1, x.shape[1]):
        _grouped(nodes[1], groups)
    t.set(tensors_in(out)[0], nodes)


@rule(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention"
    " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps"
)
def attention(t: DimTracker, out: Any, args: Args) -> None:
    """Queries and keys share their width, the result has that of the values; batch and heads pass through."""
    q, k, v = (t.get(args[name]) for name in ("query", "key", "value"))
    unify(q[-1], k[-1])
    unify(k[-2], v[-2])
    front = []
    for x, y, z in zip(q[:-2], k[:-2], v[:-2], strict=True):
        unify(y, z)
        if x.size == y.size:
            front.append(unify_broadcast(x, y))
        else:  # grouped queries: several heads of queries to each head of keys
            heads, queries = factor(x, y.size, ("heads", "queries"))
            unify(heads, y)
            freeze(queries, "the number of queries to a key is written in the code")
            front.append(x)
    mask = args.get("attn_mask", args.get("attn_bias"))
    if mask is not None:
        for node, other in zip([*front, q[-2], k[-2]][::-1], t.get(mask)[::-1], strict=False):
            unify_broadcast(node, other)
    t.set(tensors_in(out)[0], [*front, q[-2], v[-1]])


def is_pointwise(op: OpOverload) -> bool:
    """Return whether PyTorch tags this operation as element-wise."""
    return torch.Tag.pointwise in op.tags
