"""Attention in the many ways in which people write it, with the axes a person would find in it."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.axes.axes_prove import IMAGES, TOKENS, Case, Net


def by_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def apart(net, x):
    return (by_heads(part, net.num_heads) for part in (net.q(x), net.k(x), net.v(x)))


def chunked(net, x):
    return (by_heads(part, net.num_heads) for part in net.qkv(x).chunk(3, -1))


def timm_like(net, x):
    return net.qkv(x).reshape(*x.shape[:2], 3, net.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def picked(net, x):
    fused = net.qkv(x).unflatten(-1, (3, net.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return fused[0], fused[1], fused[2]


def neox_like(net, x):
    return by_heads(net.qkv(x), net.num_heads).chunk(3, -1)


def neox_viewed(net, x):
    return net.qkv(x).view(*x.shape[:2], net.num_heads, 3, -1).permute(3, 0, 2, 1, 4)


def attends(split, mask=None):
    """Attention written out, scaled by one, so that a cut of its heads is the whole without what was cut."""

    def run(net, x):
        stream = net.embed(x)
        q, k, v = split(net, stream)
        size = x.shape[1]
        if mask == "tokens":
            chosen = {"attn_mask": torch.ones(size, size, dtype=torch.bool).tril()}
        elif mask == "float":
            chosen = {"attn_mask": torch.zeros(len(x), 1, size, size, dtype=x.dtype)}
        else:
            chosen = {"is_causal": mask == "causal"}
        if mask == "by-hand":
            later = torch.ones(size, size, device=x.device).triu(1).bool()
            mixed = (q @ k.transpose(-1, -2)).masked_fill(later, -1e9).softmax(-1) @ v
        elif mask == "einsum":
            mixed = torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, **chosen, scale=1.0)
        return net.head(stream + net.out(mixed.transpose(1, 2).flatten(2)))

    return run


def attention(split, mask=None, width=8, heads=2):
    def build():
        fused = {} if split is apart else {"qkv": nn.Linear(width, 3 * width)}
        three = {name: nn.Linear(width, width) for name in "qkv"} if split is apart else {}
        ends = {"out": nn.Linear(width, width), "head": nn.Linear(width, 3)}
        return Net(attends(split, mask), embed=nn.Linear(4, width), **fused, **three, **ends, num_heads=heads)

    return build


FUSED = {"embed": 8, "qkv.heads": 2, "qkv.head_dim": 4}


def few_keys(form):
    """Four heads of queries to two of keys and values."""

    def run(net, x):
        stream = net.embed(x)
        q, k, v = (
            part.unflatten(-1, (-1, net.head_dim)).transpose(1, 2)
            for part in (net.q(stream), net.k(stream), net.v(stream))
        )
        times = q.shape[1] // k.shape[1]
        if form == "interleave":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        elif form == "repeat":
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        elif form == "expand":
            k, v = (part[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=form == "sdpa", scale=1.0)
        return net.head(stream + net.out(mixed.transpose(1, 2).flatten(2)))

    return lambda: Net(
        run,
        embed=nn.Linear(4, 16),
        q=nn.Linear(16, 16),
        k=nn.Linear(16, 8),
        v=nn.Linear(16, 8),
        out=nn.Linear(16, 16),
        head=nn.Linear(16, 3),
        head_dim=4,
    )


def vit(net, images):
    x = net.patch(images).flatten(2).transpose(1, 2)
    x = torch.cat([net.token.expand(len(x), -1, -1), x], 1) + net.position
    q, k, v = timm_like(net, net.norm(x))
    x = x + net.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return net.head(x[:, 0])


def swiglu(net, x):
    gate, value = net.up(x).chunk(2, -1)
    return net.head(F.silu(gate) * value)


TRANSFORMERS = {
    "attention-apart": Case(attention(apart), TOKENS, {"embed": 8, "q.heads": 2, "q.head_dim": 4}),
    **{
        f"attention-{split.__name__.replace('_', '-')}": Case(attention(split), TOKENS, FUSED)
        for split in (chunked, timm_like, picked, neox_viewed)
    },
    "attention-neox-like": Case(attention(neox_like), TOKENS, None),
    **{
        f"attention-mask-{mask}": Case(attention(timm_like, mask), TOKENS, FUSED)
        for mask in ("causal", "tokens", "float", "by-hand", "einsum")
    },
    # as many heads as parts of the fused layer: one must not be taken for the other
    "attention-of-three-heads": Case(
        attention(timm_like, width=18, heads=3), TOKENS, {"embed": 18, "qkv.heads": 3, "qkv.head_dim": 6}
    ),
    **{
        f"few-keys-{form}": Case(few_keys(form), TOKENS, {"embed": 16, "q.heads": 2, "q.head_dim": 4})
        for form in ("interleave", "repeat", "expand", "sdpa")
    },
    "vit": Case(
        lambda: Net(
            vit,
            patch=nn.Conv2d(3, 8, 3, 3),
            token=nn.Parameter(torch.randn(1, 1, 8)),
            position=nn.Parameter(torch.randn(1, 5, 8)),
            norm=nn.LayerNorm(8),
            qkv=nn.Linear(8, 24),
            out=nn.Linear(8, 8),
            head=nn.Linear(8, 3),
            num_heads=2,
        ),
        IMAGES,
        {"patch": 8, "qkv.heads": 2, "qkv.head_dim": 4},
        zeroed=False,
    ),
    "swiglu": Case(lambda: Net(swiglu, up=nn.Linear(4, 16), head=nn.Linear(8, 3)), TOKENS, {"up": 8}),
    "glu-apart": Case(
        lambda: Net(
            lambda net, x: net.down(F.silu(net.gate(x)) * net.up(x)),
            gate=nn.Linear(4, 8),
            up=nn.Linear(4, 8),
            down=nn.Linear(8, 3),
        ),
        TOKENS,
        {"gate": 8},
    ),
}
