"""Adapters of peft: their ranks are axes, and a sub-model is a model of peft with a smaller rank."""

import functools
import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import nestling
from nestling.axes.adapters import adapters, other_factor, rank_name

needs_peft = pytest.mark.skipif(not (find_spec("peft") and find_spec("transformers")), reason="needs peft")
WORDS = torch.tensor([[1, 5, 7, 2, 9, 3], [4, 4, 8, 6, 2, 10]])


@pytest.mark.parametrize(
    ("name", "axis", "other"),
    [
        ("h.0.attn.lora_A.default", "h.0.attn.lora.rank", "h.0.attn.lora_B.default"),
        ("h.0.lora_embedding_A.default", "h.0.lora.rank", "h.0.lora_embedding_B.default"),
        ("h.0.lora_A.summary", "h.0.lora.summary.rank", "h.0.lora_B.summary"),
        ("lora_A", "lora.rank", "lora_B"),
        ("head.lora_A", "head.lora.rank", "head.lora_B"),
        ("head.lora_B", "head.lora_B", ""),
        ("head.lora_Alpha", "head.lora_Alpha", ""),
        ("head.my_lora_A", "head.my_lora_A", ""),
    ],
)
def test_names(name, axis, other):
    assert rank_name(name) == axis
    assert other_factor(name) == other


@functools.cache
def peft():
    """`peft`, which takes seconds to import."""
    import_module("transformers").logging.set_verbosity_error()
    return import_module("peft")


def gpt2(**config):
    transformers = import_module("transformers")
    sizes = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    config = {"r": 8, "lora_alpha": 16, "target_modules": ["c_attn", "c_fc", "mlp.c_proj"]} | config
    return peft().get_peft_model(model, peft().LoraConfig(fan_in_fan_out=True, **config))


class Mixed(nn.Module):
    """An embedding, a linear layer and two convolutions, all of which peft adapts."""

    def __init__(self):
        super().__init__()
        self.words, self.middle, self.head = nn.Embedding(12, 8), nn.Linear(8, 12), nn.Linear(6, 3)
        self.signal, self.image = nn.Conv1d(12, 10, 3), nn.Conv2d(10, 6, 1)

    def forward(self, ids):
        x = self.middle(self.words(ids)).relu().transpose(1, 2)
        return self.head(self.image(self.signal(x).relu().unsqueeze(-1)).mean((2, 3)))


def mixed(**config):
    targets = ["words", "middle", "signal", "image", "head"]
    config = peft().LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": targets} | config))
    return peft().get_peft_model(Mixed(), config)


def trained(model):
    """The model with random adapters: one factor of each begins at zero."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                nn.init.normal_(value, std=0.3)
    return model.eval()


def ranks_of(axes):
    return {name: size for name, size in axes.axes.items() if name.endswith(".rank")}


def rank_plan(axes, share):
    return nestling.plan(axes, {"*.rank": share})


@needs_peft
def test_ranks_of_gpt2_are_axes_and_their_proof_holds():
    torch.manual_seed(0)
    model = gpt2(task_type="CAUSAL_LM")
    axes = nestling.trace(model, WORDS)
    layers = [f"base_model.model.transformer.h.{layer}" for layer in range(2)]
    parts = ["attn.c_attn", "mlp.c_fc", "mlp.c_proj"]
    assert ranks_of(axes) == {f"{layer}.{part}.lora.rank": 8 for layer in layers for part in parts}
    assert len(axes.axes) == len(ranks_of(axes)) + 1 + 2 * 3  # a stream, and of each layer heads, their width, the MLP
    assert {adapter.rank for adapter in adapters(axes)} == set(ranks_of(axes))
    nestling.check(model, axes, WORDS).raise_if_bad()


@needs_peft
def test_ranks_of_embeddings_and_convolutions():
    torch.manual_seed(0)
    model = mixed()
    axes = nestling.trace(model, WORDS)
    names = ["words", "middle", "signal", "image", "head"]
    assert ranks_of(axes) == {f"base_model.model.{name}.lora.rank": 4 for name in names}
    assert len(adapters(axes)) == 5
    nestling.check(model, axes, WORDS).raise_if_bad()


@needs_peft
@pytest.mark.parametrize("make", [gpt2, mixed])
@pytest.mark.parametrize("rank_stabilised", [False, True])
def test_a_sub_model_has_the_scaling_of_the_whole_and_says_so(make, rank_stabilised):
    torch.manual_seed(0)
    model = trained(make(use_rslora=rank_stabilised))
    axes = nestling.trace(model, WORDS)
    small = nestling.submodel(model, axes, rank_plan(axes, 0.5))
    zeroed = trained_part(model, axes)
    with torch.no_grad():
        torch.testing.assert_close(logits(small), logits(zeroed), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(logits(small), logits(model), atol=1e-3)
    layers = [pair for pair in zip(small.modules(), model.modules(), strict=True) if hasattr(pair[0], "lora_alpha")]
    assert len(layers) == len(ranks_of(axes))
    for layer, whole in layers:
        rank, alpha = layer.r["default"], layer.lora_alpha["default"]
        assert rank == whole.r["default"] // 2
        assert layer.scaling == whole.scaling
        assert alpha / (math.sqrt(rank) if rank_stabilised else rank) == pytest.approx(layer.scaling["default"])
    assert model.peft_config["default"].r == 2 * small.peft_config["default"].r


def trained_part(model, axes):
    """The whole model with zeros in all units of ranks but the first half."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for adapter in adapters(axes):
        half = len(state[adapter.a]) // 2
        state[adapter.a][half:], state[adapter.b][:, half:] = 0, 0
    twin = nestling.submodel(model, axes, nestling.Plan())
    twin.load_state_dict(state)
    return twin


def logits(model):
    result = model(WORDS)
    return getattr(result, "logits", result)


@needs_peft
@pytest.mark.parametrize("config", [{}, {"rank_pattern": {"c_fc": 6, "h.1.attn.c_attn": 3}}])
def test_a_sub_model_is_saved_and_loaded_by_peft(tmp_path, config):
    torch.manual_seed(0)
    model = trained(gpt2(**config))
    axes = nestling.trace(model, WORDS)
    assert set(ranks_of(axes).values()) == ({8, 6, 3} if config else {8})
    small = nestling.submodel(model, axes, rank_plan(axes, 0.4))
    small.save_pretrained(tmp_path)
    base = import_module("transformers").GPT2LMHeadModel(model.base_model.model.config)
    names = {name: name.replace("base_model.model.", "").replace(".base_layer", "") for name in model.state_dict()}
    frozen = {names[name]: value for name, value in model.state_dict().items() if "lora_" not in name}
    base.load_state_dict(frozen)
    loaded = peft().PeftModel.from_pretrained(base, tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(logits(loaded), logits(small))


@needs_peft
def test_an_adapter_that_is_not_in_use_is_not_cut():
    model = gpt2()
    model.add_adapter("spare", peft().LoraConfig(r=4, target_modules=["c_fc"], fan_in_fan_out=True))
    axes = nestling.trace(model, WORDS)
    assert all("spare" not in name for name in axes.axes)
    assert any("spare" in name for name in axes.frozen)
    model.set_adapter("spare")
    assert {name.removeprefix("base_model.model.") for name in ranks_of(nestling.trace(model, WORDS))} == {
        f"transformer.h.{layer}.mlp.c_fc.lora.spare.rank" for layer in range(2)
    }
