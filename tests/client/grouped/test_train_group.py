"""Grouped clients against training one by one, in double precision: every tensor, every figure."""

import copy

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling.client.grouped.train_group import Member, train_group
from nestling.client.grouped.trial import can_group
from nestling.client.train import train
from nestling.errors import TrainingError
from nestling.kernels.grouped_layers import Grouped, obstacle
from nestling.methods.parts.scaler import scale
from nestling.methods.parts.static_norms import make_static
from nestling.settings import LocalTraining
from tests.client.training_cases import inputs_of, net_of
from tests.harness import client_of

LAWS = settings(deadline=None, derandomize=True, max_examples=25, database=None)
NORMS = ({"norm": kind, "widths": (8, 8, 8, 8)} for kind in ("gn", "ln", "in", "none"))
CASES = [
    ("mlp", {}),
    ("cnn", {}),
    *(("cnn", options) for options in NORMS),
    ("cnn1d", {}),
    ("vgg16", {}),
    ("preresnet18", {}),
    ("vit-tiny", {"learn_steps": False}),
]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def states_of(model, count, seed=0):
    """As many states as there are clients, no two alike."""
    random = generator(seed)
    return [
        {
            name: tensor + 0.1 * torch.rand(tensor.shape, generator=random, dtype=tensor.dtype)
            if tensor.is_floating_point()
            else tensor.clone()
            for name, tensor in model.state_dict().items()
        }
        for _ in range(count)
    ]


class Wobble:
    """Batches with noise that each client draws from its own stream, as augmentation does."""

    def __init__(self, inputs, targets, count):
        self.inputs, self.targets = inputs, targets
        self.streams = [generator(100 + k) for k in range(count)]

    def one(self, k, chosen):
        inputs = self.inputs[chosen]
        if inputs.is_floating_point():
            inputs = inputs + torch.rand(inputs.shape, generator=self.streams[k], dtype=inputs.dtype)
        return inputs, self.targets[chosen]

    def many(self, who, chosen):
        inputs, targets = zip(*(self.one(k, part) for k, part in zip(who, chosen, strict=True)), strict=True)
        return torch.cat(inputs), torch.cat(targets)


def both(model, counts, local, *, classes=4, labels=None, mu=0.0, inputs=None, targets=None, layout=None):
    """Train clients alone and together; return what both ways made of them."""
    labels = labels or [None] * len(counts)
    inputs = torch.randn(40, 3, generator=generator(1), dtype=torch.float64) if inputs is None else inputs
    if targets is None:
        targets = torch.randint(classes, (len(inputs),), generator=generator(2))
    samples = [torch.randperm(len(inputs), generator=generator(k))[:count] for k, count in enumerate(counts)]
    states = states_of(model, len(counts))
    alone, wobble = [], Wobble(inputs, targets, len(counts))
    for k, state in enumerate(states):
        twin = copy.deepcopy(model)
        twin.load_state_dict(state)
        torch.manual_seed(k)
        progress = train(
            client_of(twin, held=labels[k], training=msgspec.structs.replace(local, proximal=mu)),
            samples[k],
            lambda chosen, k=k: wobble.one(k, chosen),
            lr=0.1,
            generator=generator(k),
        )
        alone.append((twin.state_dict(), progress))
    if layout is None:
        verdict = can_group(model, inputs[:5], targets[:5])
        assert verdict.layout is not None, verdict.reason
        layout = verdict.layout
    members = [Member(state, samples[k], generator(k), generator(k), labels[k]) for k, state in enumerate(states)]
    wobble = Wobble(inputs, targets, len(counts))
    trained = train_group(Grouped(model, len(counts) + 1, layout), members, wobble.many, local, lr=0.1, proximal=mu)
    return alone, list(zip(trained.states(), trained.progress, strict=True))


def assert_same(alone, together):
    for (state, progress), (other, sums) in zip(alone, together, strict=True):
        assert state.keys() == other.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-12, atol=1e-12, msg=name)
            assert other[name].is_contiguous()
        assert (progress.samples, progress.correct) == (sums.samples, sums.correct)
        assert sums.loss == pytest.approx(progress.loss, rel=1e-12)


def perceptron(norm=True):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(5) if norm else nn.LayerNorm(5)
    return nn.Sequential(nn.Linear(3, 5, bias=False), middle, nn.Tanh(), nn.Linear(5, 4)).double()


@LAWS
@given(
    local=st.builds(
        LocalTraining,
        optimizer=st.sampled_from(["sgd", "adam"]),
        momentum=st.sampled_from([0.0, 0.9]),
        weight_decay=st.sampled_from([0.0, 0.1]),
        clip_norm=st.sampled_from([0.0, 0.05, 1.0]),
        epochs=st.integers(1, 3),
        batch_size=st.integers(2, 6),
    ),
    mu=st.sampled_from([0.0, 3.0]),
    counts=st.lists(st.integers(2, 14), min_size=2, max_size=5),
    masked=st.booleans(),
    tracks=st.booleans(),
    layout=st.sampled_from(["batch", "channels"]),
)
def test_a_group_is_its_clients_one_by_one(local, mu, counts, masked, tracks, layout):
    # of a batch of two, a batch norm leaves gradients that are rounding errors, which Adam makes as large as any other
    model = perceptron(norm=local.optimizer == "sgd")
    if not tracks:
        make_static(model)
    labels = [None if k == 1 else torch.tensor([k % 4, 3]) for k in range(len(counts))] if masked else None
    assert_same(*both(model, counts, local, labels=labels, mu=mu, layout=layout))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_whoever_is_done_changes_no_more_and_disturbs_nobody(optimizer):
    local = LocalTraining(epochs=2, batch_size=3, optimizer=optimizer, weight_decay=0.1, clip_norm=0.0)
    assert_same(*both(perceptron(norm=False), (3, 14, 2, 8, 8), local, mu=3.0))


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_models_train_together_as_alone(name, options):
    net, axes = net_of(name, **options)
    model = nestling.submodel(net, axes, nestling.plan(axes, 0.5))
    scale(model, axes, 0.5)
    make_static(model)
    local = LocalTraining(epochs=2, batch_size=4)
    assert_same(*both(model, (9, 12, 6), local, classes=3, inputs=inputs_of(name, count=12)))


class Words(nn.Module):
    """A small reader of ids: positions that are the same for all, dropout, tied ends."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.token, self.position = nn.Embedding(7, 6), nn.Embedding(5, 6)
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(dropout)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.drop(self.norm(self.token(ids) + self.position(torch.arange(ids.shape[1]))))
        return self.head(torch.tanh(x).mean(1))


def test_dropout_draws_what_each_client_would_draw_alone():
    torch.manual_seed(0)
    model = Words().double()
    ids = torch.randint(7, (20, 5), generator=generator(3))
    alone, together = both(model, (7, 9, 4, 2), LocalTraining(epochs=2, batch_size=3), classes=7, inputs=ids)
    assert_same(alone, together)
    plain, _ = both(Words(dropout=0.0).double(), (7, 9), LocalTraining(epochs=2, batch_size=3), classes=7, inputs=ids)
    assert not torch.allclose(plain[0][0]["norm.weight"], alone[0][0]["norm.weight"])


class Tables(nn.Module):
    """Ids of two dimensions, and a convolution."""

    def __init__(self):
        super().__init__()
        self.table, self.conv, self.last = nn.Embedding(7, 3), nn.Conv2d(4, 2, 1), nn.Linear(2 * 2 * 3, 4)

    def forward(self, ids):  # (batch, 4, 2)
        return self.last(self.conv(self.table(ids)).flatten(1))


def test_a_single_sample_of_a_single_client_is_no_table_of_positions():
    torch.manual_seed(0)
    ids = torch.randint(7, (20, 4, 2), generator=generator(3))
    assert_same(*both(Tables().double(), (1, 4, 6), LocalTraining(epochs=2, batch_size=2), inputs=ids))


def test_words_that_do_not_count_count_for_nobody():
    net, _ = net_of("transformer-mlm", dropout=0.1)
    ids = inputs_of("transformer-mlm", count=20)
    targets = torch.randint(20, ids.shape, generator=generator(4))
    targets[torch.rand(ids.shape, generator=generator(5)) < 0.4] = -100
    labels = [torch.arange(15), None, torch.arange(5, 20), None]
    alone, together = both(
        net, (7, 9, 4, 2), LocalTraining(epochs=2, batch_size=3), labels=labels, inputs=ids, targets=targets
    )
    assert_same(alone, together)
    assert together[1][1].samples < 2 * 9 * ids.shape[1]


def test_frozen_and_unused_parameters_stay():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.spare, self.last = nn.Linear(3, 4), nn.Linear(2, 2), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x).relu())

    torch.manual_seed(0)
    model = Net().double()
    model.first.bias.requires_grad_(False)
    alone, together = both(model, (8, 5), LocalTraining(epochs=1, batch_size=4, weight_decay=0.5))
    assert_same(alone, together)
    start = states_of(model, 2)[1]
    for name in ("spare.weight", "first.bias"):
        assert torch.equal(together[1][0][name], start[name])
    assert not torch.equal(together[1][0]["first.weight"], start["first.weight"])


class Mixing(nn.Module):
    """Softmax over the batch mixes samples, which the layout of channels keeps apart; over channels it is the other."""

    def __init__(self, *over):
        super().__init__()
        self.over = over
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        for dim in self.over:
            x = x.softmax(dim)
        return self.last(x)


class Direct(nn.Module):
    """Uses a layer's weights without asking the layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(F.linear(x, self.first.weight))


class Rarely(nn.Sequential):
    """Drops so little, by itself, that a trial of it agrees."""

    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.Linear(4, 4))

    def forward(self, x):
        return F.dropout(super().forward(x), 1e-7, self.training)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Mixing(0, 1), "mixes clients"),
        (Direct(), "cannot run"),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout1d(0.5), nn.Linear(4, 4)), "belong to no client"),
        (Rarely(), "belong to no client"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 4)), "all batches so far"),
        (nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 4)), "1 (PReLU) holds tensors"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), "holds tensors"),
        (nn.Sequential(nn.Linear(2, 4)), "cannot be trained alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_grouped_is_found_out(model, why):
    verdict = can_group(model, torch.randn(5, 3), torch.arange(5) % 4)
    assert verdict.layout is None
    assert why in verdict.reason


@pytest.mark.parametrize(("over", "layout"), [(0, "channels"), (1, "batch")])
def test_the_layout_that_keeps_clients_apart_is_found(over, layout):
    assert can_group(Mixing(over), torch.randn(5, 3), torch.arange(5) % 4).layout == layout


def test_a_trial_changes_nothing():
    model = perceptron().float()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    can_group(model, torch.randn(5, 3, generator=generator(0)), torch.arange(5) % 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_obstacles_name_the_module():
    assert obstacle(nn.Sequential(nn.Embedding(4, 2, padding_idx=0))).startswith("0 (Embedding) treats some")
    assert obstacle(nn.Conv2d(2, 2, 3, padding_mode="circular")).startswith("the model (Conv2d) pads with")


def test_a_loss_that_is_no_number_is_told():
    model = perceptron()
    with pytest.raises(TrainingError, match="no longer a number"):
        both_diverge(model)


def both_diverge(model):
    inputs = torch.randn(8, 3, dtype=torch.float64)
    inputs[3] = float("nan")
    members = [
        Member(state, torch.arange(4 * k, 4 * k + 4), generator(k), generator(k))
        for k, state in enumerate(states_of(model, 2))
    ]
    batch = Wobble(inputs, torch.zeros(8).long(), 2).many
    return train_group(Grouped(model, 2, "batch"), members, batch, LocalTraining(epochs=1, batch_size=2), lr=0.1)
