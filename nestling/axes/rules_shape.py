"""Rules for operations that move, join, split or select dims without computing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from nestling.axes.rules import Args, DimTracker, constant, rule, unify_broadcast
from nestling.axes.shapes import tensors_in
from nestling.axes.unify import Clash, Node, concat, factor, freeze, is_frozen, product, segment

EMPTY = "sliced to nothing"  # in a smaller model, a sign that the border is hard-coded

# Operations that return a view: a dim that only passes through these is not used.
VIEWS = frozenset(
    [
        *["t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "view", "_unsafe_view", "reshape"],
        *["_reshape_alias", "alias", "detach", "slice", "select", "narrow", "as_strided", "unbind"],
        *["split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk"],
    ]
)


@rule("t transpose permute")
def permute(t: DimTracker, out: Any, args: Args) -> None:
    """Dims change places."""
    nodes = list(t.get(args["self"]))
    if "dims" in args:
        nodes = [nodes[k] for k in args["dims"]]
    elif "dim0" in args:
        i, j = args["dim0"], args["dim1"]
        nodes[i], nodes[j] = nodes[j], nodes[i]
    else:
        nodes = nodes[::-1]
    t.set(out, nodes)


@rule("unsqueeze")
def unsqueeze(t: DimTracker, out: Any, args: Args) -> None:
    """A dim of one appears."""
    nodes = list(t.get(args["self"]))
    nodes.insert(args["dim"] % out.dim(), Node(1))
    t.set(out, nodes)


@rule("squeeze")
def squeeze(t: DimTracker, out: Any, args: Args) -> None:
    """Dims of one disappear."""
    x = args["self"]
    dim = args.get("dim")
    places = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {k % x.dim() for k in places}
    t.set(out, [node for k, node in enumerate(t.get(x)) if not (k in gone and x.shape[k] == 1)])


@rule("expand")
def expand(t: DimTracker, out: Any, args: Args) -> None:
    """A dim of one is repeated: the number of copies is hard-coded, so it is a constant."""
    nodes = t.get(args["self"])
    offset = out.dim() - len(nodes)
    t.set(
        out,
        [
            nodes[k - offset] if k >= offset and nodes[k - offset].size == size else constant(size, "repeated")
            for k, size in enumerate(out.shape)
        ],
    )


@rule("repeat tile")
def repeat(t: DimTracker, out: Any, args: Args) -> None:
    """Concatenated copies: the number of copies is the outer factor."""
    nodes = t.get(args["self"])
    times = args["repeats"] if "repeats" in args else args["dims"]
    nodes = [Node(1)] * (len(times) - len(nodes)) + list(nodes)
    t.set(out, [product([constant(n, "repeated"), node]) for n, node in zip(times, nodes, strict=True)])


@rule("view _unsafe_view reshape _reshape_alias")
def view(t: DimTracker, out: Any, args: Args) -> None:
    """Dims joined and split in row-major order."""
    t.set(out, reshape(t.get(args["self"]), out.shape))


def reshape(nodes: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """Return `nodes` reshaped to `sizes`: factors joined into products, products split."""
    if 0 in sizes:
        raise Clash("a view of an empty tensor")
    left = deque(node for node in nodes if node.size != 1)
    result = []
    for size in sizes:
        group: list[Node] = []
        need = size
        while need > 1:
            node = left.popleft()
            if node.size > need:
                node, rest = factor(node, need, ("heads", "head_dim"))
                left.appendleft(rest)
            if need % node.size:
                raise Clash(f"a view that joins {node.size} into {size}")
            group.append(node)
            need //= node.size
        result.append(product(group))
    return result


@rule("cat")
def cat(t: DimTracker, out: Any, args: Args) -> None:
    """One dim is a sum of segments; the other dims are unified."""
    parts = [x for x in args["tensors"] if x.dim() == out.dim()]
    dim = args.get("dim", 0) % out.dim()
    dims = [list(t.get(x)) for x in parts]
    nodes = dims[0]
    for other in dims[1:]:
        nodes = [a if k == dim else unify_broadcast(a, b) for k, (a, b) in enumerate(zip(nodes, other, strict=True))]
    nodes[dim] = concat([other[dim] for other in dims])
    t.set(out, nodes)


@rule("stack")
def stack(t: DimTracker, out: Any, args: Args) -> None:
    """A new dim, the number of tensors."""
    dims = [t.get(x) for x in args["tensors"]]
    nodes = list(dims[0])
    for other in dims[1:]:
        nodes = [unify_broadcast(a, b) for a, b in zip(nodes, other, strict=True)]
    nodes.insert(args.get("dim", 0) % out.dim(), constant(len(dims), "stacked"))
    t.set(out, nodes)


@rule("split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk split_copy")
def split(t: DimTracker, out: Any, args: Args) -> None:
    """One dim in consecutive segments."""
    nodes = list(t.get(args["self"]))
    dim = args.get("dim", 0) % len(nodes)
    for piece, node in zip(out, segment(nodes[dim], [piece.shape[dim] for piece in out]), strict=True):
        t.set(piece, [*nodes[:dim], node, *nodes[dim + 1 :]])


@rule("slice")
def slice_(t: DimTracker, out: Any, args: Args) -> None:
    """One segment of a dim."""
    x = args["self"]
    nodes = list(t.get(x))
    dim = args.get("dim", 0) % x.dim()
    size, kept = x.shape[dim], out.shape[dim]
    if kept != size:
        start = args.get("start") or 0
        start = min(max(start + size if start < 0 else start, 0), size)
        if args.get("step", 1) != 1 or kept == 0:
            why = "sliced with a step" if kept else EMPTY
            freeze(nodes[dim], why)
            nodes[dim] = constant(kept, why)
        elif size % kept == 0 and start % kept == 0:  # one of several equal parts
            nodes[dim] = segment(nodes[dim], [kept] * (size // kept))[start // kept]
        else:
            pieces = segment(nodes[dim], [n for n in (start, kept, size - start - kept) if n])
            nodes[dim] = pieces[1 if start else 0]
    t.set(out, nodes)


@rule("select unbind")
def select(t: DimTracker, out: Any, args: Args) -> None:
    """Single units are selected by number: the dim is frozen."""
    nodes = list(t.get(args["self"]))
    selected = nodes.pop(args.get("dim", 0) % len(nodes))
    for result in tensors_in(out):
        t.set(result, nodes)
        t.freeze_on_use(result, selected, "units are taken by number")


@rule("roll flip")
def moved(t: DimTracker, out: Any, args: Args) -> None:
    """Units change places along some dims, which are frozen."""
    nodes = t.get(args["self"])
    for k in args["dims"] or range(len(nodes)):
        freeze(nodes[k], "order matters (roll or flip)")
    t.set(out, nodes)


@rule("constant_pad_nd")
def pad(t: DimTracker, out: Any, args: Args) -> None:
    """Padded dims are frozen: the amount of padding is hard-coded."""
    nodes = list(t.get(args["self"]))
    for k, size in enumerate(out.shape):
        if nodes[k].size != size:
            freeze(nodes[k], "padded")
            nodes[k] = constant(size, "padded")
    t.set(out, nodes)


@rule("index index_select gather take_along_dim")
def index(t: DimTracker, out: Any, args: Args) -> None:
    """Units are selected by an index tensor: those dims are frozen, the others pass through."""
    x = args["self"]
    nodes = list(t.get(x))
    if "indices" in args:
        picked = [k for k, table in enumerate(args["indices"]) if table is not None]
    elif args["index"].dim() == 1 and "sparse_grad" not in args:
        picked = [args["dim"] % x.dim()]
    else:  # gather: the index has a value for every element, so every dim is tied to it
        picked = list(range(x.dim()))
    for k in picked:
        freeze(nodes[k], "picked by number")
    if all(is_frozen(node) for node in nodes):
        t.set(out, [constant(size, "picked by number") for size in out.shape])
        return
    if picked != list(range(picked[0], picked[-1] + 1)):
        raise Clash("a table of numbers on dims that are apart")
    before, after = nodes[: picked[0]], nodes[picked[-1] + 1 :]
    middle = out.shape[len(before) : out.dim() - len(after)]
    t.set(out, [*before, *(constant(size, "picked by number") for size in middle), *after])


@rule("pixel_shuffle")
def pixel_shuffle(t: DimTracker, out: Any, args: Args) -> None:
    """Channels (channels, r, r) become channels of an image r times as large."""
    *front, channels, _, _ = t.get(args["self"])
    outer, inner = factor(channels, out.shape[-3], ("pixels", "shuffle"))
    freeze(inner, "pixels of a block")
    t.set(out, [*front, outer, *(constant(size, "spatial") for size in out.shape[-2:])])


def _pool(spatial: int) -> Any:
    def pool(t: DimTracker, out: Any, args: Args) -> None:
        nodes = t.get(args["self"] if "self" in args else args["input"])
        for node in nodes[-spatial:]:
            freeze(node, "spatial")
        for result in tensors_in(out):
            t.set(result, [*nodes[:-spatial], *(constant(n, "spatial") for n in result.shape[-spatial:])])

    pool.__doc__ = f"Windows over the last {spatial} dims, channel by channel."
    return pool


rule(
    "max_pool1d max_pool1d_with_indices avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d upsample_linear1d"
    " upsample_nearest1d reflection_pad1d replication_pad1d"
)(_pool(1))
rule(
    "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d"
    " upsample_bilinear2d upsample_nearest2d upsample_bicubic2d _upsample_bilinear2d_aa reflection_pad2d"
    " replication_pad2d mkldnn_max_pool2d"
)(_pool(2))
rule(
    "max_pool3d max_pool3d_with_indices avg_pool3d adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d"
    " upsample_trilinear3d upsample_nearest3d replication_pad3d"
)(_pool(3))
