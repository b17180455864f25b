"""`submodel` and `resize`: plain smaller modules whose layers know their own sizes."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import nestling
from nestling import Plan, Tally, extract, resize, submodel
from nestling.nets import Residual
from nestling.nets.attention import Attention
from tests.cut.cut_cases import (
    LAWS,
    NETS,
    PLANS,
    RESIDUAL,
    FusedAttention,
    Step,
    Through,
    TorchAttention,
    addresses,
    case,
    kept_of,
    random_plan,
    same,
    shared_steps,
)
from tests.quick import mostly_slow

BATCH = torch.Generator().manual_seed(0)
ROWS = torch.randn(3, 4, generator=BATCH)
WORDS = torch.randn(3, 5, 4, generator=BATCH)
IMAGES = torch.randn(2, 3, 6, 6, generator=BATCH)
SOUNDS = torch.randn(2, 3, 7, generator=BATCH)
SOLIDS = torch.randn(2, 3, 4, 4, 4, generator=BATCH)


class KeyedAttention(nn.Module):
    """Torch's attention with keys of another width than its queries, and biases for them."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 8), nn.Linear(4, 6)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attention(self.query(x), self.key(x), self.key(x))[0])


class Cell(nn.Module):
    """A recurrent cell that starts from its own zeros."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(8, 3)

    def forward(self, x):
        state = self.cell(x)
        return self.head(state[0] if isinstance(state, tuple) else state)


def dense(*middle):
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Linear(8, 3))


def convs(*middle, out=8):
    return nn.Sequential(nn.Conv2d(3, 8, 1), *middle, nn.Conv2d(out, 3, 1))


# net, example, where, what the layer there must say when everything is cut to half
LAYERS = {
    "linear": (lambda: dense(nn.ReLU()), ROWS, "2", {"in_features": 4, "out_features": 3}),
    "linear without bias": (
        lambda: nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3)),
        ROWS,
        "0",
        {"in_features": 4, "out_features": 4, "bias": None},
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.Conv1d(8, 3, 1)),
        SOUNDS,
        "0",
        {"in_channels": 3, "out_channels": 4},
    ),
    "conv2d": (lambda: convs(nn.Conv2d(8, 6, 3), out=6), IMAGES, "1", {"in_channels": 4, "out_channels": 3}),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.Conv3d(8, 3, 1)),
        SOLIDS,
        "1",
        {"in_channels": 4, "out_channels": 3},
    ),
    "padded conv": (
        lambda: convs(nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular"), out=6),
        IMAGES,
        "1",
        {"in_channels": 4, "out_channels": 3, "padding_mode": "circular"},
    ),
    "grouped conv": (
        lambda: convs(nn.Conv2d(8, 12, 3, groups=2), out=12),
        IMAGES,
        "1",
        {"in_channels": 4, "out_channels": 6, "groups": 2},
    ),
    "depthwise conv": (
        lambda: convs(nn.Conv2d(8, 8, 3, groups=8)),
        IMAGES,
        "1",
        {"in_channels": 4, "out_channels": 4, "groups": 4},
    ),
    "transposed conv": (
        lambda: convs(nn.ConvTranspose2d(8, 6, 2, 2), out=6),
        IMAGES,
        "1",
        {"in_channels": 4, "out_channels": 3},
    ),
    "grouped transposed conv": (
        lambda: convs(nn.ConvTranspose2d(8, 12, 2, 2, groups=2), out=12),
        IMAGES,
        "1",
        {"in_channels": 4, "out_channels": 6, "groups": 2},
    ),
    "batch norm": (lambda: convs(nn.BatchNorm2d(8)), IMAGES, "1", {"num_features": 4}),
    "batch norm 3d": (
        lambda: nn.Sequential(nn.Conv3d(3, 8, 1), nn.BatchNorm3d(8), nn.Conv3d(8, 3, 1)),
        SOLIDS,
        "1",
        {"num_features": 4},
    ),
    "batch norm without statistics": (
        lambda: convs(nn.BatchNorm2d(8, track_running_stats=False)),
        IMAGES,
        "1",
        {"num_features": 4, "running_mean": None},
    ),
    "batch norm without parameters": (
        lambda: convs(nn.BatchNorm2d(8, affine=False)),
        IMAGES,
        "1",
        {"num_features": 4, "weight": None},
    ),
    "instance norm": (lambda: convs(nn.InstanceNorm2d(8, affine=True)), IMAGES, "1", {"num_features": 4}),
    "instance norm without parameters": (lambda: convs(nn.InstanceNorm2d(8)), IMAGES, "1", {}),
    "group norm": (lambda: convs(nn.GroupNorm(2, 8)), IMAGES, "1", {"num_groups": 2, "num_channels": 4}),
    "group norm of one group": (lambda: convs(nn.GroupNorm(1, 8)), IMAGES, "1", {"num_groups": 1, "num_channels": 4}),
    "group norm of every channel": (
        lambda: convs(nn.GroupNorm(8, 8)),
        IMAGES,
        "1",
        {"num_groups": 4, "num_channels": 4},
    ),
    "group norm without parameters": (lambda: convs(nn.GroupNorm(2, 8, affine=False)), IMAGES, "1", {"num_groups": 2}),
    "group norm of every channel without parameters": (
        lambda: convs(nn.GroupNorm(8, 8, affine=False)),
        IMAGES,
        "1",
        {},
    ),
    "layer norm": (lambda: dense(nn.LayerNorm(8)), ROWS, "1", {"normalized_shape": (4,)}),
    "layer norm without bias": (lambda: dense(nn.LayerNorm(8, bias=False)), ROWS, "1", {"normalized_shape": (4,)}),
    "layer norm without parameters": (lambda: dense(nn.LayerNorm(8, elementwise_affine=False)), ROWS, "1", {}),
    "layer norm of images": (
        lambda: convs(nn.LayerNorm((8, 6, 6))),
        IMAGES,
        "1",
        {"normalized_shape": (4, 6, 6)},
    ),
    "rms norm": (lambda: dense(nn.RMSNorm(8)), ROWS, "1", {"normalized_shape": (4,)}),
    "rms norm without parameters": (lambda: dense(nn.RMSNorm(8, elementwise_affine=False)), ROWS, "1", {}),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 3)),
        torch.tensor([[1, 8, 0]]),
        "0",
        {"num_embeddings": 9, "embedding_dim": 4, "padding_idx": 0},
    ),
    "prelu": (lambda: dense(nn.PReLU(8)), ROWS, "1", {"num_parameters": 4}),
    "prelu of one": (lambda: dense(nn.PReLU()), ROWS, "1", {"num_parameters": 1}),
    "rnn": (
        lambda: Through(nn.Linear(4, 6), nn.RNN(6, 8, 2, batch_first=True, bias=False), nn.Linear(8, 3)),
        WORDS,
        "layers.1",
        {"input_size": 3, "hidden_size": 4},
    ),
    "lstm": (
        lambda: Through(nn.Linear(4, 6), nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)),
        WORDS,
        "layers.1",
        {"input_size": 3, "hidden_size": 4},
    ),
    "lstm with projections": (
        lambda: Through(nn.Linear(4, 6), nn.LSTM(6, 8, batch_first=True, proj_size=4), nn.Linear(4, 3)),
        WORDS,
        "layers.1",
        {"input_size": 3, "hidden_size": 8, "proj_size": 4},  # torch tells its two widths apart by size: both frozen
    ),
    "gru": (
        lambda: Through(nn.Linear(4, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)),
        WORDS,
        "layers.1",
        {"input_size": 3, "hidden_size": 4},
    ),
    "lstm cell": (lambda: Cell(nn.LSTMCell(4, 8)), ROWS, "cell", {"input_size": 4, "hidden_size": 4}),
    "gru cell": (lambda: Cell(nn.GRUCell(4, 8)), ROWS, "cell", {"input_size": 4, "hidden_size": 4}),
    "attention": (
        TorchAttention,
        torch.randn(2, 3, 5, generator=BATCH),
        "attention",
        {"embed_dim": 6, "num_heads": 3, "head_dim": 2, "kdim": 6, "vdim": 6},
    ),
    "attention with keys of another width": (
        KeyedAttention,
        WORDS,
        "attention",
        {"embed_dim": 4, "num_heads": 2, "head_dim": 2, "kdim": 3, "vdim": 3},
    ),
    "encoder layer": (
        lambda: dense(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        WORDS,
        "1.linear1",
        {"in_features": 4, "out_features": 8},
    ),
}


def halved(net, x):
    axes = nestling.trace(net, x)
    plan = nestling.plan(axes, 0.5)
    return axes, plan, submodel(net, axes, plan)


@pytest.mark.parametrize("what", LAYERS)
def test_layers_know_their_sizes(what):
    make, x, path, wanted = LAYERS[what]
    net = make()
    small = halved(net, x)[2]
    layer = small.get_submodule(path)
    assert {name: getattr(layer, name) for name in wanted} == wanted
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*num_features.*")  # a layer that remembers its old size says so
        for training in (True, False):
            out = small.train(training)(x)
            assert out.shape == net.train(training)(x).shape
            assert out.isfinite().all()


@pytest.mark.parametrize("what", LAYERS)
def test_a_small_model_is_traced_like_the_whole_one(what):
    """Nothing of the large layer is left: the axes are found again, in their new sizes."""
    make, x, *_ = LAYERS[what]
    _, plan, small = halved(make(), x)
    again = nestling.trace(small, x)
    kept = {axis: len(plan.index(axis)) for axis in plan.runs}
    assert kept
    assert {axis: again.axes.get(axis) for axis in kept} == kept


@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_without_parameters_normalises_the_small_width(layer):
    small = halved(dense(layer(8, elementwise_affine=False)), ROWS)[2]
    torch.testing.assert_close(small[1](ROWS), layer(4, elementwise_affine=False)(ROWS))


def test_a_group_norm_without_parameters_normalises_every_channel():
    small = halved(convs(nn.GroupNorm(8, 8, affine=False)), IMAGES)[2]
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(small[1](x), nn.GroupNorm(4, 4, affine=False)(x))


def test_recurrent_layers_use_the_tensors_that_they_show():
    it = case("lstm2")
    small = submodel(it.model, it.axes, nestling.plan(it.axes, 0.5))
    layer = small.layers[1]
    assert [id(weight) for weight in layer._flat_weights] == [id(weight) for weight in layer.parameters()]
    before = small(it.example)
    with torch.no_grad():
        layer.weight_hh_l0.add_(1)
    assert not torch.equal(small(it.example), before)


# ---- heads and groups by name


@pytest.mark.parametrize("kept", [[0, 1], [1, 3], [2]])
def test_heads_cut_by_name_in_the_projects_own_attention(kept):
    """Four heads of width four: two heads kept are eight rows, which could also be read as four heads of width two."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), Attention(8, heads=4, head_width=4), nn.Linear(8, 3)).double()
    x = WORDS.double()
    axes = nestling.trace(net, x)
    (heads,) = axes.groups
    small = submodel(net, axes, Plan({heads: kept}))
    assert small[1].heads == len(kept)
    with torch.no_grad():  # the heads that are not kept say nothing
        for head in set(range(4)) - set(kept):
            net[1].o.weight[:, 4 * head : 4 * head + 4] = 0
    torch.testing.assert_close(small(x), net(x))


class ManyHeads(nn.Module):
    """Attention as timm writes it: one layer for queries, keys and values, parted by a view."""

    def __init__(self, heads):
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(8, 3 * heads * 4), nn.Linear(heads * 4, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("heads", [2, 3, 4, 6])
def test_heads_cut_by_name_in_fused_attention(heads):
    """Three heads of three projections are the trap: (3 heads dim) begins with two threes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), ManyHeads(heads), nn.Linear(8, 3)).double()
    x = WORDS.double()
    axes = nestling.trace(net, x)
    (axis,) = axes.groups
    assert axes.axes[axis] == heads
    small = submodel(net, axes, Plan({axis: [heads - 1]}))
    assert small[1].num_heads == 1
    with torch.no_grad():
        net[1].proj.weight[:, : 4 * (heads - 1)] = 0
    torch.testing.assert_close(small(x), net(x))


def test_heads_of_torchs_attention_by_name():
    it = case("attention")
    small = submodel(it.model, it.axes, nestling.plan(it.axes, {"*heads": 1 / 3}))
    assert (small.attention.num_heads, small.attention.head_dim, small.attention.embed_dim) == (1, 4, 4)
    assert small(it.example).shape == it.model(it.example).shape


def test_groups_of_a_convolution_by_name():
    it = case("grouped")
    (axis,) = it.axes.groups
    small = submodel(it.model, it.axes, Plan({axis: [1, 3]}))
    assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (2, 4, 6)
    assert torch.equal(small[1].weight, it.model[1].weight[[3, 4, 5, 9, 10, 11]])
    assert small(it.example).shape == it.model(it.example).shape


@pytest.mark.parametrize("chunk", [True, False])
def test_a_number_that_is_only_alike_is_left_alone(chunk):
    net = FusedAttention(chunk)
    net.dim = 8  # the width of the stream, which is not cut here
    axes = nestling.trace(net, torch.zeros(2, 3, 5))
    small = submodel(net, axes, nestling.plan(axes, {"qkv.head_dim": 0.5}))
    assert (small.dim, small.num_heads) == (8, 3)


# ---- Conv1D, as GPT-2 has it


class Conv1D(nn.Module):
    """A linear layer with its weight transposed; known by its class name and by `nf`."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


def test_conv1d():
    net = nn.Sequential(Conv1D(8, 4), nn.GELU(), Conv1D(6, 8), nn.Linear(6, 3))
    axes, plan, small = halved(net, WORDS)
    assert [(layer.nx, layer.nf) for layer in (small[0], small[2])] == [(4, 4), (4, 3)]
    assert torch.equal(small[2].weight, net[2].weight[:4, :3])
    assert small(WORDS).shape == (3, 5, 3)
    assert plan.runs.keys() == axes.axes.keys()


def test_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=17, n_positions=8, n_embd=12, n_layer=2, n_head=3, n_inner=20)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    net = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.tensor([[1, 5, 16, 0]])
    axes = nestling.trace(net, input_ids=ids, use_cache=False)
    assert axes.tied == {"lm_head.weight": "transformer.wte.weight"}
    whole = submodel(net, axes, Plan())
    torch.testing.assert_close(whole(ids).logits, net(ids).logits)
    assert whole.lm_head.weight is whole.transformer.wte.weight
    for plan in (
        nestling.plan(axes, 0.5),
        nestling.plan(axes, {"*heads": 0.5}),
        nestling.plan(axes, 0.5, "rolling", round=3),
    ):
        small = submodel(net, axes, plan)
        assert small(ids).logits.shape == (1, 4, 17)
        assert same(small.state_dict(), extract(axes, plan, net.state_dict())) is None
        tally = Tally(axes, net.state_dict())
        tally.add(small.state_dict(), plan)
        assert same(tally.value(), dict(net.state_dict())) is None


# ---- training


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
@settings(LAWS, max_examples=4)
@given(which=PLANS)
def test_a_training_step_works_and_merges_back(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    before = {key: tensor.clone() for key, tensor in it.model.state_dict().items()}
    small = submodel(it.model, it.axes, plan).train()
    optimiser = torch.optim.SGD(small.parameters(), lr=0.1)
    torch.manual_seed(0)
    small(it.example).square().mean().backward()
    assert [key for key, parameter in small.named_parameters() if parameter.grad is None] == []
    optimiser.step()
    tally = Tally(it.axes, it.model.state_dict())
    tally.add(small.state_dict(), plan)
    assert not any(tensor.isnan().any() for tensor in tally.value().values())
    assert same(it.model.state_dict(), before) is None
    assert all(parameter.grad is None for parameter in it.model.parameters())


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
def test_no_memory_is_shared_and_the_model_stays_as_it_was(name):
    it = case(name)
    printed, before = repr(it.model), {key: tensor.clone() for key, tensor in it.model.state_dict().items()}
    for seed in range(4):
        plan = random_plan(it.axes, seed)
        small = submodel(it.model, it.axes, plan)
        tensors = dict(small.named_parameters()) | dict(small.named_buffers())
        mine = dict(it.model.named_parameters()) | dict(it.model.named_buffers())
        assert not addresses(tensors) & addresses(mine)
        for tensor in tensors.values():
            tensor.data.fill_(1)
    assert repr(it.model) == printed
    assert same(it.model.state_dict(), before) is None


def test_mode_is_kept_module_by_module():
    it = case("cnn")
    net = submodel(it.model, it.axes, Plan()).train()
    net.blocks[1].norm.eval()
    small = submodel(net, it.axes, nestling.plan(it.axes, 0.5))
    assert {path: module.training for path, module in small.named_modules()} == {
        path: module.training for path, module in net.named_modules()
    }
    assert not submodel(net.eval(), it.axes, Plan()).training


def test_what_is_not_trained_stays_so():
    it = case("cnn")
    net = submodel(it.model, it.axes, Plan())
    net.blocks[0].requires_grad_(False)
    small = submodel(net, it.axes, nestling.plan(it.axes, 0.5))
    assert {key: p.requires_grad for key, p in small.named_parameters()} == {
        key: p.requires_grad for key, p in net.named_parameters()
    }
    assert all(p.is_leaf and p.grad is None for p in small.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype):
    it = case("resnet18")
    net = submodel(it.model, it.axes, Plan()).to(dtype)
    small = submodel(net, it.axes, nestling.plan(it.axes, 0.5))
    assert {t.dtype for t in small.state_dict().values()} == {dtype, torch.int64}
    assert small(it.example.to(dtype)).dtype == dtype


def test_device_is_kept():
    it = case("resnet18")
    bare = resize(it.model, it.axes, Plan())
    assert all(tensor.is_meta for tensor in submodel(bare, it.axes, nestling.plan(it.axes, 0.5)).state_dict().values())
    small = submodel(it.model, it.axes, nestling.plan(it.axes, 0.5))
    assert all(tensor.device.type == "cpu" for tensor in small.state_dict().values())


def test_buffers_that_are_not_saved_are_copied():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
            self.register_buffer("scale", torch.tensor(2.0), persistent=False)

        def forward(self, x):
            return self.head(self.enter(x) * self.scale)

    net = Masked()
    small = halved(net, ROWS)[2]
    small.scale.fill_(9)
    assert net.scale == 2
    assert "scale" not in small.state_dict()
    assert list(small._non_persistent_buffers_set) == ["scale"]


# ---- meta, build


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
@settings(LAWS, max_examples=4)
@given(which=PLANS)
def test_resize_and_assign_is_submodel(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    bare = resize(it.model, it.axes, Plan())  # a device that has only the architecture
    small = resize(bare, it.axes, plan)
    assert all(tensor.is_meta for tensor in [*small.parameters(), *small.buffers()])
    small.load_state_dict(extract(it.axes, plan, it.model.state_dict()), assign=True)
    whole = submodel(it.model, it.axes, plan)
    assert repr(small) == repr(whole)
    assert torch.equal(small.eval()(it.example), whole.eval()(it.example))


def test_build_makes_the_module_and_gets_the_weights():
    """For a forward pass with sizes in its code."""

    class Fixed(nn.Module):
        def __init__(self, hidden=8):
            super().__init__()
            self.hidden = hidden
            self.enter, self.head = nn.Linear(4, hidden), nn.Linear(hidden, 3)

        def forward(self, x):
            return self.head(self.enter(x).view(-1, self.hidden).relu())

    net = Fixed()
    axes = nestling.trace(net, ROWS)
    if not axes.axes:  # the size in the view froze it: by hand, then
        axes = axes.declare({"enter.weight": "hidden 4", "enter.bias": "hidden", "head.weight": "3 hidden"})
    (axis,) = axes.axes
    plan = Plan({axis: [1, 5]})
    requested = []

    def build(given_plan):
        requested.append(given_plan)
        return Fixed(len(given_plan.index(axis)))

    small = submodel(net, axes, plan, build=build)
    assert requested == [plan]
    assert torch.equal(small.enter.weight, net.enter.weight[[1, 5]])
    assert torch.equal(small.head.weight, net.head.weight[:, [1, 5]])
    assert small(ROWS).shape == (3, 3)
    with pytest.raises(nestling.NestlingError, match="size mismatch"):
        submodel(net, axes, plan, build=lambda _: Fixed())


# ---- blocks


def stop(block):
    """Set the step of a residual block to zero, learned or not."""
    if isinstance(block.step, nn.Parameter):
        nn.init.zeros_(block.step)
    else:
        block.step = 0.0


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
@settings(LAWS, max_examples=5)
@given(which=PLANS)
def test_a_dropped_block_is_a_block_with_step_zero(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    keep = list(it.axes.blocks)[which[0] % 3 :: 2]
    cut = {axis: kept for axis, kept in kept_of(plan).items() if not axis.endswith("heads")}
    x = it.example.double() if it.example.is_floating_point() else it.example
    net = submodel(it.model, it.axes, Plan()).double()
    still = submodel(net, it.axes, Plan(cut))
    for block in it.axes.blocks:
        if block not in keep:
            stop(still.get_submodule(block))
    small = submodel(net, it.axes, Plan(cut, keep))
    torch.testing.assert_close(small(x), still(x), rtol=1e-12, atol=1e-12)
    assert sum(isinstance(module, Residual) for module in small.modules()) == len(keep)


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
def test_names_of_shortcuts_do_not_depend_on_their_block(name):
    it = case(name)
    whole = it.model.state_dict()
    small = submodel(it.model, it.axes, Plan(blocks=[])).state_dict()
    assert small.keys() < whole.keys()
    assert not any(".body." in key for key in small)
    outside = {key for key in whole if not any(f"{block}.body." in key for block in it.axes.blocks)}
    assert small.keys() == {key for key in outside if not key.endswith(".step")}
    assert all(torch.equal(tensor, whole[key]) for key, tensor in small.items())


def test_blocks_that_nobody_declared_are_passed_through():
    it = case("steps")
    small = submodel(it.model, it.axes, Plan(blocks=["2"]))
    x = it.model[0](it.example)
    assert torch.equal(small(it.example), it.model[4](it.model[2](x)))
    assert not list(small[1].parameters())
    assert not any(isinstance(small[k], Step) for k in (1, 3))


@pytest.mark.parametrize("drop", ["1", "2"])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_weights_shared_with_a_dropped_block_are_cut_and_copied(drop, width):
    net = shared_steps()
    x = torch.randn(2, 5)
    axes = nestling.trace(net, x)
    plan = nestling.plan(axes, width, blocks=[block for block in axes.blocks if block != drop])
    small = submodel(net, axes, plan)
    assert same(small.state_dict(), extract(axes, plan, net.state_dict())) is None
    assert not addresses(small.state_dict()) & addresses(net.state_dict())
    assert small(x).shape == (2, 3)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "transformer-mlm", "fused-chunk", "lstm2"])
def test_a_slice_of_a_slice_is_a_slice(name):
    it = case(name)
    half = nestling.plan(it.axes, 0.5)
    small = submodel(it.model, it.axes, half)
    axes = nestling.trace(small, it.example)
    inner = {axis: list(range((size + 1) // 2)) for axis, size in axes.axes.items() if axis not in axes.groups}
    direct = submodel(it.model, it.axes, Plan(inner))
    assert same(submodel(small, axes, Plan(inner)).state_dict(), direct.state_dict()) is None
    assert torch.equal(submodel(small, axes, Plan(inner))(it.example), direct(it.example))


def test_a_submodel_is_a_plain_module():
    it = case("resnet18")
    small = submodel(it.model, it.axes, nestling.plan(it.axes, 0.5))
    assert type(small) is type(it.model)
    assert [type(m) for m in small.modules()] == [type(m) for m in it.model.modules()]
    twin = copy.deepcopy(small)
    assert torch.equal(twin(it.example), small(it.example))
