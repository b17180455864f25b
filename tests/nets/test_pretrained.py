"""Weights in the layouts of torchvision and timm make our models compute what their owners computed.

Neither library is needed: the small nets below are written for these tests, with the public names.
"""

import contextlib
import hashlib
import os
import pickle
from collections import OrderedDict

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.errors import ModelError
from nestling.nets import build
from nestling.nets.layouts import LAYOUTS
from nestling.nets.pretrained import Match, read_weights, start_from

RESNET, VIT, VIT_TIMM, VGG = LAYOUTS


# ---- nets with the public names


class TheirBlock(nn.Module):
    """A basic block, or a bottleneck where ``inside`` differs from None, with torchvision's names."""

    def __init__(self, before, after, stride, inside=None):
        super().__init__()
        sizes = [(before, after, 3, stride), (after, after, 3, 1)]
        if inside is not None:
            sizes = [(before, inside, 1, 1), (inside, inside, 3, stride), (inside, after, 1, 1)]
        self.count = len(sizes)
        for i, (a, b, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = F.relu(y) if i < self.count else y
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class TheirResNet(nn.Module):
    def __init__(self, depths, widths, stem, classes, expansion=0):
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        before, self.stages = stem, len(depths)
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                after = width * (expansion or 1)
                blocks.append(TheirBlock(before, after, 2 if i and not j else 1, width if expansion else None))
                before = after
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


class TheirEncoderBlock(nn.Module):
    def __init__(self, width, heads, generation):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        first, second = ("linear_1", "linear_2") if generation == "old" else ("0", "3")
        self.mlp = nn.Sequential(OrderedDict([(first, up), ("1", nn.GELU()), ("2", nn.Identity()), (second, down)]))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class TheirViT(nn.Module):
    def __init__(self, size, patch, width, depth, heads, classes, generation):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        blocks = [(f"encoder_layer_{i}", TheirEncoderBlock(width, heads, generation)) for i in range(depth)]
        self.encoder.layers = nn.Sequential(OrderedDict(blocks))
        self.encoder.ln = nn.LayerNorm(width, eps=1e-6)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


class FusedBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.attn["qkv"](self.norm1(x)).reshape(batch, length, 3, self.n, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.attn["proj"]((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class FusedViT(nn.Module):
    def __init__(self, size, patch, width, depth, heads, classes):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.blocks = nn.Sequential(*(FusedBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def their_vgg(widths, normed):
    layers, before = [], 3
    for stage in widths:
        for width in stage:
            layers += [nn.Conv2d(before, width, 3, padding=1), *([nn.BatchNorm2d(width)] if normed else []), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    hidden = [nn.Linear(before * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(
        OrderedDict(features=nn.Sequential(*layers), classifier=nn.Sequential(*hidden, nn.Linear(4096, 1000)))
    )


def shaken(net):
    """The net in float64 with every parameter and statistic away from its start, ready to be asked."""
    net = net.double()
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 2)
            elif value.is_floating_point():
                value.add_(0.3 * torch.randn_like(value))
    return net.eval()


def same(ours, theirs, size, weights=None):
    """Start ours from theirs and compare what both compute; give the match."""
    ours = ours.double().eval()
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        before = ours(x)
        match = start_from(ours, theirs.state_dict() if weights is None else weights)
        expected = theirs(x)
        assert not torch.allclose(before, expected)
        torch.testing.assert_close(ours(x), expected, rtol=1e-9, atol=1e-9)
    return match


# ---- the same function


STEM = {"stem_kernel": 7, "stem_stride": 2, "pool": True}


def test_resnet_computes_the_same():
    theirs = shaken(TheirResNet((2, 1, 2, 1), (4, 6, 8, 8), 4, 7))
    ours = build("resnet18", depths=(2, 1, 2, 1), widths=(4, 6, 8, 8), classes=7, **STEM)
    match = same(ours, theirs, 32)
    assert match.unused == ()
    assert match.skipped == {name: "not in the file" for name in ours.state_dict() if name.endswith("step")}
    assert len(match.skipped) == 6
    assert all(block.step == 1 for stage in ours.stages for block in stage)


def test_bottlenecks_compute_the_same():
    theirs = shaken(TheirResNet((2, 1, 2, 1), (4, 6, 8, 8), 6, 7, expansion=2))
    ours = build("wide-resnet101-2", depths=(2, 1, 2, 1), widths=(4, 6, 8, 8), stem_width=6, classes=7)
    assert same(ours, theirs, 48).unused == ()


@pytest.mark.parametrize("generation", ["old", "new"])
def test_vit_of_torchvision_computes_the_same(generation):
    theirs = shaken(TheirViT(16, 4, 12, 3, 3, 7, generation))
    ours = build("vit-b16", size=16, patch=4, width=12, depth=3, heads=3, classes=7)
    match = same(ours, theirs, 16)
    assert match.unused == ()
    assert all(name.endswith("step") for name in match.skipped)


def test_vit_of_timm_computes_the_same():
    theirs = shaken(FusedViT(16, 4, 12, 3, 3, 7))
    ours = build("vit-b16", size=16, patch=4, width=12, depth=3, heads=3, classes=7, learn_steps=False)
    match = same(ours, theirs, 16)
    assert match.unused == ()
    assert match.skipped == {}


@pytest.mark.parametrize("normed", [False, True])
def test_convolutions_of_vgg_compute_the_same(normed):
    widths = ((4,), (6, 6), (8, 8, 8))
    theirs = shaken(their_vgg(widths, normed).features)
    weights = {f"features.{name}": value for name, value in theirs.state_dict().items()}
    weights["classifier.6.bias"] = torch.zeros(5)
    ours = build("vgg16", widths=widths, classes=5, norm="bn" if normed else "none").double().eval()
    match = start_from(ours, weights)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(ours.stages(x), theirs(x), rtol=1e-9, atol=1e-9)
    assert match.unused == ("classifier.6.bias",)
    assert match.skipped == {"head.weight": "not in the file", "head.bias": "not in the file"}


def test_vgg_without_norms_leaves_ours():
    ours = build("vgg16", widths=((4,), (6, 6)))
    match = start_from(
        ours, {f"features.{k}": v for k, v in their_vgg(((4,), (6, 6)), False).features.state_dict().items()}
    )
    assert {"stages.0.norm1.weight", "stages.1.norm2.running_var"} < match.skipped.keys()
    assert match.taken == tuple(
        f"stages.{s}.conv{i}.{p}" for s, i in ((0, 1), (1, 1), (1, 2)) for p in ("weight", "bias")
    )


# ---- the public names and shapes, in full size (no values: meta tensors)


PUBLISHED = {
    "resnet18": (lambda: TheirResNet((2, 2, 2, 2), (64, 128, 256, 512), 64, 1000), RESNET, 11_689_512),
    "resnet34": (lambda: TheirResNet((3, 4, 6, 3), (64, 128, 256, 512), 64, 1000), RESNET, 21_797_672),
    "wide-resnet101-2": (
        lambda: TheirResNet((3, 4, 23, 3), (128, 256, 512, 1024), 64, 1000, expansion=2),
        RESNET,
        126_886_696,
    ),
    "vit-b16": (lambda: TheirViT(224, 16, 768, 12, 12, 1000, "new"), VIT, 86_567_656),
    "vit-b16 of timm": (lambda: FusedViT(224, 16, 768, 12, 12, 1000), VIT_TIMM, 86_567_656),
    "vgg16": (lambda: their_vgg(VGG16, True), VGG, 138_365_992),
    "vgg16 without norms": (lambda: their_vgg(VGG16, False), VGG, 138_357_544),
}
# Of the names and shapes in the state dicts that timm 1.0.30 and torchvision 0.29.2 make (of VGG, torchvision's alone).
DIGESTS = {
    "resnet18": "5191d63ec3989592",
    "resnet34": "f8de2a1812ef85e4",
    "wide-resnet101-2": "5004ebcdd27edca6",
    "vit-b16": "2c2360f6707280a8",
    "vit-b16 of timm": "6e116342a243f50b",
    "vgg16": "86bad13b66635552",
    "vgg16 without norms": "ba63c2556d912509",
}
VGG16 = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_are_ours(name):
    make, layout, count = PUBLISHED[name]
    model, *rest = name.split(" ", 1)
    with torch.device("meta"):
        theirs = make()
        options = {} if model == "vgg16" else {"learn_steps": False} | (STEM if model.startswith("resnet") else {})
        ours = (
            build(model, classes=1000, norm="none")
            if rest == ["without norms"]
            else build(model, classes=1000, **options)
        )
    assert sum(p.numel() for p in theirs.parameters()) == count
    lines = "\n".join(f"{key} {tuple(value.shape)}" for key, value in sorted(theirs.state_dict().items()))
    assert hashlib.sha256(lines.encode()).hexdigest().startswith(DIGESTS[name])
    offers = layout.translate(theirs.state_dict())
    expected = {k: v.shape for k, v in ours.state_dict().items() if model != "vgg16" or not k.startswith("head.")}
    got = {
        k: o.tensor.shape[1:] if k in ("token.weight", "position.weight") else o.tensor.shape for k, o in offers.items()
    }
    assert got == expected


# ---- what is left, and why


def small_resnet(**options):
    return build("resnet18", **{"depths": (1, 1, 1, 1), "widths": (4, 6, 8, 8)} | options)


def their_small(classes=7):
    return shaken(TheirResNet((1, 1, 1, 1), (4, 6, 8, 8), 4, classes)).state_dict()


def test_another_head_is_left():
    ours = small_resnet(classes=3, **STEM)
    before = ours.head.weight.clone()
    match = start_from(ours, their_small())
    assert match.skipped["head.weight"] == "shape (7, 8) of fc.weight is not (3, 8)"
    assert match.skipped["head.bias"] == "shape (7,) of fc.bias is not (3,)"
    assert match.unused == ("fc.weight", "fc.bias")
    assert torch.equal(ours.head.weight, before)


def test_a_bias_is_not_taken_without_its_weight():
    weights = their_small(classes=3)
    weights["fc.weight"] = torch.zeros(3, 99)
    match = start_from(small_resnet(classes=3, **STEM), weights)
    assert match.skipped["head.bias"] == "belongs to head.weight, which was left"


def test_a_stem_of_another_kernel_is_left_with_its_norm():
    ours = small_resnet(classes=7)
    before = {name: value.clone() for name, value in ours.stem.state_dict().items()}
    match = start_from(ours, their_small())
    assert match.skipped["stem.conv.weight"] == "shape (4, 3, 7, 7) of conv1.weight is not (4, 3, 3, 3)"
    assert match.skipped["stem.norm.running_var"] == "belongs to stem.conv.weight, which was left"
    assert all(torch.equal(value, before[name]) for name, value in ours.stem.state_dict().items())
    assert "stages.0.0.body.conv1.weight" in match.taken
    assert "bn1.weight" in match.unused


def test_affine_parameters_of_batch_norms_stay_with_batch_norms():
    match = start_from(small_resnet(norm="ln", classes=7, **STEM), their_small())
    assert match.skipped["stem.norm.weight"] == "bn1.weight is of a batch norm, which the model does not have here"
    assert "stages.1.0.skip.conv.weight" in match.taken


def test_a_deeper_model_takes_the_blocks_there_are():
    match = start_from(small_resnet(depths=(2, 1, 1, 1), classes=7, **STEM), their_small())
    assert match.skipped["stages.0.1.body.conv1.weight"] == "not in the file"
    assert "stages.0.0.body.conv1.weight" in match.taken


def test_summary_is_short():
    lines = start_from(small_resnet(classes=3), their_small()).summary().splitlines()
    assert lines[0] == "66 of 78 tensors filled"  # without 6 of the stem, 2 of the head, 4 steps
    assert "left as it was, shape (7, 8) of fc.weight is not (3, 8): head.weight" in lines
    assert lines[-1] == "unused in the file: conv1.weight, bn1.weight, bn1.bias and 5 more"
    many = Match((), {str(i): f"reason {i}" for i in range(9)}, ()).summary().splitlines()
    assert many[-1] == "left as it was, for other reasons: 3 more"


# ---- positions


def vit(size, **options):
    return build("vit-tiny", size=size, patch=4, width=12, depth=1, heads=3, **options)


@settings(max_examples=25, deadline=None)
@given(old=st.integers(1, 6), new=st.integers(1, 6), slope=st.booleans())
def test_positions_are_interpolated_on_their_grid(old, new, slope):
    theirs = FusedViT(4 * old, 4, 12, 1, 3, 7).state_dict()
    # rows and columns in different features, so that a mixed-up grid shows
    line = torch.linspace(0.5, old - 0.5, old) / old if slope else torch.full((old,), 0.25)
    grid = torch.zeros(old, old, 12)
    grid[..., 0], grid[..., 1], grid[..., 2] = line[:, None], line[None], 5.0
    theirs["pos_embed"][0, 1:] = grid.flatten(0, 1)
    ours = vit(4 * new, classes=7)
    assert "position.weight" in start_from(ours, theirs).taken
    position = ours.position.weight.detach()
    assert torch.equal(position[0], theirs["pos_embed"][0, 0])
    got = position[1:].reshape(new, new, 12)
    torch.testing.assert_close(got[..., 0], got[..., 1].T)
    torch.testing.assert_close(got[..., 2], torch.full((new, new), 5.0))
    torch.testing.assert_close(got[..., 1], got[:1, :, 1].expand(new, new))
    if slope and old > 1:
        assert (got[0, 1:, 1] > got[0, :-1, 1]).all()
    elif not slope:
        torch.testing.assert_close(got[..., 0], torch.full((new, new), 0.25))
    if old == new:
        assert torch.equal(position, theirs["pos_embed"][0])


def test_positions_of_our_own_layout_are_interpolated_too():
    source, ours = vit(16), vit(24)
    match = start_from(ours, source.state_dict())
    assert match.skipped == {}
    assert torch.equal(ours.position.weight[0], source.position.weight[0])


@pytest.mark.parametrize("rows", [0, 1, 18])
def test_positions_that_are_no_grid_are_left(rows):
    theirs = FusedViT(16, 4, 12, 1, 3, 7).state_dict() | {"pos_embed": torch.zeros(1, rows, 12)}
    match = start_from(vit(16, classes=7), theirs)
    assert match.skipped["position.weight"] == f"shape (1, {rows}, 12) of pos_embed is not (17, 12)"


def test_positions_of_a_text_model_are_no_grid():
    small, large = (build("transformer-mlm", vocabulary=9, width=8, heads=2, hidden=8, positions=n) for n in (5, 10))
    assert start_from(large, small.state_dict()).skipped["position.weight"].startswith("shape (5, 8)")


# ---- names, types and files


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module.model."])
def test_prefixes_of_wrappers_are_stripped(prefix):
    theirs = {prefix + name: value for name, value in their_small().items()} | {"n_averaged": torch.tensor(3)}
    match = start_from(small_resnet(classes=7, **STEM), theirs)
    assert match.unused == ("n_averaged",)
    assert "head.bias" in match.taken


def test_a_prefix_that_the_model_has_itself_stays():
    ours, source = (nn.ModuleDict({"model": nn.Linear(2, 3)}) for _ in range(2))
    assert start_from(ours, source.state_dict()).taken == ("model.weight", "model.bias")
    assert torch.equal(ours["model"].weight, source["model"].weight)


def test_the_same_name_twice():
    theirs = their_small()
    with pytest.raises(
        ModelError, match=r"^the state dict holds both 'conv1.weight' and 'module.conv1.weight': leave "
    ):
        start_from(small_resnet(**STEM), theirs | {"module.conv1.weight": theirs["conv1.weight"]})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_files_of_every_kind_and_precision(tmp_path, dtype, suffix):
    weights = {name: v.to(dtype) if v.is_floating_point() else v for name, v in their_small().items()}
    path = tmp_path / f"weights{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(weights, path)
    ours = small_resnet(classes=7, **STEM)
    assert start_from(ours, path).unused == ()
    assert ours.stem.conv.weight.dtype == torch.float32
    assert torch.equal(ours.stem.conv.weight, weights["conv1.weight"].float())
    assert ours.stem.conv.weight.requires_grad


@settings(max_examples=25, deadline=None)
@given(missing=st.sets(st.integers(0, 60), max_size=6), wrong=st.sets(st.integers(0, 60), max_size=6))
def test_every_tensor_is_accounted_for(missing, wrong):
    theirs = their_small()
    names = list(theirs)
    for i in wrong:
        theirs[names[i]] = torch.zeros(2, 5)
    for i in missing:
        theirs.pop(names[i], None)
    ours = small_resnet(classes=7, **STEM)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    try:
        match = start_from(ours, theirs)
    except ModelError:  # too little was left
        assert missing | wrong
        assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
        return
    assert set(match.taken) | match.skipped.keys() == before.keys()
    assert not set(match.taken) & match.skipped.keys()
    assert len(match.unused) == len(theirs) - len(match.taken)  # nothing is fused here
    assert all(torch.equal(ours.state_dict()[name], before[name]) for name in match.skipped)
    offers = RESNET.translate(theirs)
    assert all(torch.equal(ours.state_dict()[name], offers[name].tensor.to(before[name])) for name in match.taken)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_file_does_not_run(tmp_path):
    sprung = tmp_path / "sprung"
    torch.save({"weight": Trap(str(sprung))}, tmp_path / "trap.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"weight": Trap(str(sprung))}, protocol=2))
    with pytest.raises(
        ModelError, match=r"trap.pt' holds more than tensors \(posix.mkdir\), which is never run: save "
    ):
        read_weights(tmp_path / "trap.pt")
    with pytest.raises(ModelError, match=r"plain.pt' "):
        read_weights(tmp_path / "plain.pt")
    assert not sprung.exists()


def test_a_whole_model_is_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(
        ModelError, match=r"more than tensors \(torch.nn.modules.linear.Linear\).*state_dict\(\) alone$"
    ):
        read_weights(tmp_path / "model.pt")


BAD = {
    "empty.pt": ({}, "holds no tensors$"),
    "list.pt": ([torch.ones(2)], "holds no dictionary of tensors but list$"),
    "tensor.pt": (torch.ones(2), "holds no dictionary of tensors but Tensor$"),
    "checkpoint.pt": ({"epoch": 3}, r"more than tensors: 'epoch' is of type int; save model.state_dict\(\) alone$"),
    "nested.pt": ({"state_dict": {}}, "'state_dict' is of type dict; save"),
    "numbers.pt": ({3: torch.ones(2)}, "more than tensors: 3 is of type Tensor"),
    "sparse.pt": ({"a": torch.eye(3).to_sparse()}, "'a' in '.*sparse.pt' must be a dense tensor that holds values$"),
}


@pytest.mark.parametrize("name", BAD)
def test_pytorch_files_that_are_no_state_dict(tmp_path, name):
    value, sentence = BAD[name]
    torch.save(value, tmp_path / name)
    with pytest.raises(ModelError, match=sentence):
        read_weights(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.pt").mkdir()
    for name, sentence in {
        "none.pt": "cannot be read: No such file or directory$",
        "none.safetensors": "cannot be read: No such file or directory$",
        "folder.pt": "cannot be read: Is a directory$",
        "weights.h5": r"^weights are read from \.safetensors, \.pt, \.pth, \.bin files, not '.*weights.h5'$",
    }.items():
        with pytest.raises(ModelError, match=sentence):
            start_from(nn.Linear(2, 2), tmp_path / name)
    safetensors.torch.save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ModelError, match=r"empty.safetensors' holds no tensors$"):
        read_weights(tmp_path / "empty.safetensors")


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=60, deadline=None)
@given(data=st.data(), suffix=st.sampled_from([".pt", ".safetensors"]))
def test_a_damaged_file_is_one_sentence(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("damaged") / f"file{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(
        {"a": torch.ones(3), "b": torch.ones(2)}, path
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ModelError) as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    with contextlib.suppress(ModelError):  # any other error fails the test
        assert all(isinstance(value, torch.Tensor) for value in read_weights(path).values())


# ---- weights that do not fit


def refused(model, weights):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        start_from(model, weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_widths_are_refused():
    theirs = TheirResNet((1, 1, 1, 1), (5, 7, 9, 9), 5, 7).state_dict()
    sentence = refused(small_resnet(**STEM), theirs)
    assert sentence.startswith("the state dict, read as ResNet of torchvision and timm, fills only 0 of the ")
    assert "stem.conv.weight (shape (5, 3, 7, 7) of conv1.weight is not (4, 3, 7, 7)), " in sentence


def test_half_is_needed():
    theirs, ours = (
        {"a.weight": torch.ones(5, 4)},
        nn.ModuleDict({"a": nn.Linear(4, 5, False), "b": nn.Linear(4, 6, False)}),
    )
    assert "fills only 20 of the 44 parameters of this ModuleDict" in refused(ours, theirs)
    ours["b"] = nn.Linear(4, 5, False)
    assert start_from(ours, theirs).taken == ("a.weight",)
    ours["head"] = nn.Linear(4, 50)
    assert start_from(ours, theirs).taken == ("a.weight",)


def test_a_head_alone_is_refused():
    assert "fills only 0 of the" in refused(
        small_resnet(classes=7), {n: v for n, v in their_small().items() if "fc" in n}
    )


def test_pre_activation_nets_do_not_start_from_post_activation_ones():
    pre = build("preresnet18", widths=(4, 6, 8, 8), classes=7)
    post = build("resnet18", widths=(4, 6, 8, 8), classes=7)
    theirs = TheirResNet((2, 2, 2, 2), (4, 6, 8, 8), 4, 7).state_dict()
    looks = "the state dict looks like a ResNet of torchvision and timm, which a PreResNet cannot start from"
    assert refused(pre, theirs) == looks
    for ours, other in ((pre, post), (post, pre)):
        assert "has no names that a " in refused(ours, other.state_dict())


def test_layouts_of_other_models_and_unknown_ones():
    looks = "looks like a ViT of torchvision, which a ResNet cannot start from"
    assert looks in refused(small_resnet(), TheirViT(16, 4, 12, 1, 3, 7, "new").state_dict())
    assert refused(vit(16), {"patch.wight": torch.ones(2)}).startswith(
        "the state dict has no names that a VisionTransformer can start from (its own names or those of a ViT of "
        "torchvision or those of a ViT of timm): its first is 'patch.wight'; did you mean 'patch.weight'"
    )


def test_values_that_are_not_finite_are_refused():
    theirs = their_small()
    theirs["layer2.0.conv1.weight"][0, 0] = float("nan")
    sentence = refused(small_resnet(**STEM), theirs)
    assert sentence == "'layer2.0.conv1.weight' in the state dict holds values that are not finite"


def test_whole_numbers_are_no_weights():
    theirs = their_small() | {"bn1.weight": torch.ones(4, dtype=torch.int8)}
    match = start_from(small_resnet(**STEM), theirs)
    assert match.skipped["stem.norm.weight"] == "bn1.weight is torch.int8, which is no torch.float32"


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        ours = small_resnet()
    with pytest.raises(ModelError, match=r"^a model on the meta device has no room for weights"):
        start_from(ours, their_small())


@pytest.mark.parametrize("broken", [torch.zeros(()), torch.zeros(2), torch.zeros(37, 12)])
def test_fused_tensors_of_odd_shapes(broken):
    theirs = FusedViT(16, 4, 12, 1, 3, 7).state_dict() | {"blocks.0.attn.qkv.weight": broken}
    match = start_from(vit(16, classes=7), theirs)
    why = match.skipped["blocks.0.attention.body.attention.q.weight"]
    assert why.endswith("of the q third of blocks.0.attn.qkv.weight is not (12, 12)")


def test_weights_without_values_are_refused():
    broken = {"conv1.weight": torch.zeros(4, 3, 7, 7, device="meta")}
    sentence = refused(small_resnet(**STEM), their_small() | broken)
    assert sentence == "'conv1.weight' in the state dict must be a dense tensor that holds values"
