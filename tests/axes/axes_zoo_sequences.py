"""Small models around the recurrent and attention layers of torch, with the axes a person would find in them."""

import torch
from torch import nn

from tests.axes.axes_prove import TOKENS, Case, Net


def reads(rnn, width, before=None):
    """A recurrent layer and a linear one, after an embedding where `before` gives its width."""

    def run(net, x):
        return net.head(net.rnn(x if before is None else net.embed(x))[0])

    members = {} if before is None else {"embed": nn.Linear(4, before)}
    return lambda: Net(run, **members, rnn=rnn(4 if before is None else before), head=nn.Linear(width, 3))


def last_state(net, x):
    state = net.rnn(x)[1]
    hidden = state[0] if isinstance(state, tuple) else state
    return net.head(torch.cat([hidden[-2], hidden[-1]], 1))


def unrolled(net, x):
    state = None
    for step in x.unbind(1):
        state = net.cell(step, state)
    return net.head(state[0] if isinstance(state, tuple) else state)


def started(net, x):
    start = (net.h(x[:, 0])[None], net.c(x[:, 0])[None])
    return net.head(net.rnn(x, start)[0])


def recurrent(kind, layers, both, first, before):
    name = f"{kind.__name__.lower()}-{layers}{'-both-ways' * both}{'-batch-first' * first}{'-embedded' * bool(before)}"
    build = reads(lambda size: kind(size, 6, layers, bidirectional=both, batch_first=first), 6 * (1 + both), before)
    return name, Case(build, TOKENS, {"embed": before, "rnn": 6} if before else {"rnn": 6})


RECURRENT = {
    **dict(
        recurrent(kind, *options)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for options in ((1, False, True, None), (2, True, False, 8))
    ),
    **dict(
        recurrent(nn.LSTM, *options)
        for options in ((1, True, True, None), (2, False, True, 8), (1, False, False, 8), (2, True, True, None))
    ),
    # torch tells a projection from its absence by sizes alone, so what can be cut of it is not the point
    "lstm-projected": Case(reads(lambda size: nn.LSTM(size, 8, 2, proj_size=3, batch_first=True), 3, 5), TOKENS, None),
    "lstm-given-a-state": Case(
        lambda: Net(
            started, h=nn.Linear(4, 6), c=nn.Linear(4, 6), rnn=nn.LSTM(4, 6, batch_first=True), head=nn.Linear(6, 3)
        ),
        TOKENS,
        {"h": 6},
    ),
    "gru-learned-state": Case(
        lambda: Net(
            lambda net, x: net.head(net.rnn(x, net.start.expand(1, len(x), -1).contiguous())[0]),
            rnn=nn.GRU(4, 6, batch_first=True),
            start=nn.Parameter(torch.randn(1, 1, 6)),
            head=nn.Linear(6, 3),
        ),
        TOKENS,
        {"rnn": 6},
    ),
    "lstm-last-state": Case(
        lambda: Net(
            last_state, rnn=nn.LSTM(4, 6, 2, bidirectional=True, dropout=0.1, batch_first=True), head=nn.Linear(12, 3)
        ),
        TOKENS,
        {"rnn": 6},
    ),
    "two-lstms": Case(
        lambda: Net(
            lambda net, x: net.head(net.two(net.one(x)[0])[0]),
            one=nn.LSTM(4, 6, batch_first=True),
            two=nn.LSTM(6, 8, batch_first=True),
            head=nn.Linear(8, 3),
        ),
        TOKENS,
        {"one": 6, "two": 8},
    ),
    "lstm-cell": Case(
        lambda: Net(unrolled, cell=nn.LSTMCell(4, 6), head=nn.Linear(6, 3)), TOKENS, {"cell.weight_hh": 6}
    ),
    "gru-cell": Case(lambda: Net(unrolled, cell=nn.GRUCell(4, 6), head=nn.Linear(6, 3)), TOKENS, {"cell.weight_ih": 6}),
    "rnn-cell": Case(lambda: Net(unrolled, cell=nn.RNNCell(4, 6), head=nn.Linear(6, 3)), TOKENS, {"cell.weight_hh": 6}),
}


def attends(net, x, mask=None):
    stream = net.embed(x)
    given = stream if net.other is None else net.other(x)
    return net.head(stream + net.attend(stream, given, given, key_padding_mask=mask, need_weights=net.weights)[0])


def attention(other=None, weights=True, **options):
    """torch's attention on a stream of 8, with keys and values of another width where `other` gives it."""
    if other is not None:
        options |= {"kdim": other, "vdim": other}
    return lambda: Net(
        attends,
        embed=nn.Linear(4, 8),
        other=None if other is None else nn.Linear(4, other),
        attend=nn.MultiheadAttention(8, 2, **options),
        head=nn.Linear(8, 3),
        weights=weights,
    )


def between(layer):
    """A layer on a stream of 8 between an embedding and a head."""
    return lambda: Net(
        lambda net, x, **options: net.head(net.layer(net.embed(x), **options)),
        embed=nn.Linear(4, 8),
        layer=layer(),
        head=nn.Linear(8, 3),
    )


def decoder(norm_first):
    def run(net, x, memory):
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)
        return net.head(net.layers(net.embed(x), net.other(memory), tgt_mask=mask))

    def build():
        layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        return Net(
            run,
            embed=nn.Linear(4, 8),
            other=nn.Linear(6, 8),
            layers=nn.TransformerDecoder(layer, 2),
            head=nn.Linear(8, 3),
        )

    return build


HEADS = {"embed.heads": 2, "embed.head_dim": 4}
PADDING = torch.tensor([[False] * 4 + [True], [False] * 5])
ATTENTION = {
    # torch divides by the root of the width of a head, which a cut changes: so reordered, not zeroed
    **{
        f"attention{'-batch-first' * first}{'-kdim' * bool(other)}{'' if weights else '-no-weights'}": Case(
            attention(other, weights, batch_first=first),
            TOKENS,
            HEADS | ({"other": other} if other else {}),
            zeroed=False,
        )
        for first in (False, True)
        for other in (None, 6)
        for weights in (False, True)
    },
    **{
        f"attention-padded{'-kdim' * bool(other)}{'' if weights else '-no-weights'}": Case(
            attention(other, weights, batch_first=True),
            TOKENS,
            axes,
            zeroed=False,
            kwexample={"mask": PADDING},
        )
        for (other, weights), axes in {
            (None, True): {"embed.head_dim": 4},
            (None, False): {"embed.head_dim": 4},
            (6, True): {"embed.head_dim": 4, "other": 6},
            (6, False): {"embed.head_dim": 4, "other": 6},
        }.items()
    },
    "attention-bias-kv": Case(attention(add_bias_kv=True), TOKENS, HEADS, zeroed=False),
    "attention-zero": Case(attention(add_zero_attn=True, bias=False), TOKENS, HEADS, zeroed=False),
    **{
        f"encoder-layer{'-norm-first' * norm}{'-batch-first' * first}": Case(
            between(
                lambda norm=norm, first=first: nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm, batch_first=first)
            ),
            TOKENS,
            HEADS | {"layer.linear1": 12},
            zeroed=False,
        )
        for norm in (False, True)
        for first in (False, True)
    },
    "encoder": Case(
        between(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)),
        TOKENS,
        HEADS | {"layer.layers.0.linear1": 12, "layer.layers.1.linear1": 12},
        zeroed=False,
    ),
    "encoder-padded": Case(
        between(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)),
        TOKENS,
        {"embed.head_dim": 4, "layer.layers.0.linear1": 12, "layer.layers.1.linear1": 12},
        zeroed=False,
        kwexample={"src_key_padding_mask": PADDING},
    ),
    **{
        f"decoder{'-norm-first' * norm}": Case(
            decoder(norm),
            (*TOKENS, torch.linspace(-1, 1, 2 * 7 * 6).cos().view(2, 7, 6)),
            HEADS | {"layers.layers.0.linear1": 12, "layers.layers.1.linear1": 12},
            zeroed=False,
        )
        for norm in (False, True)
    },
    "whole-transformer": Case(
        lambda: Net(
            lambda net, x: net.head(net.layers(net.embed(x), net.embed(x))),
            embed=nn.Linear(4, 8),
            layers=nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
            head=nn.Linear(8, 3),
        ),
        TOKENS,
        HEADS | {"layers.encoder.layers.0.linear1": 12, "layers.decoder.layers.0.linear1": 12},
        zeroed=False,
    ),
}

SEQUENCES = RECURRENT | ATTENTION
