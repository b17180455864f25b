"""Architectures nobody here wrote: `transformers` with random weights, as small as their configurations allow."""

import copy
import functools
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

import nestling
from tests.axes.axes_prove import assert_identity, assert_order_is_free, assert_trains, assert_whole_plan, some_units
from tests.quick import mostly_slow

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed: pip install transformers"
)

WORDS = torch.tensor([[1, 5, 7, 2, 9, 3], [4, 4, 8, 6, 2, 10]])
IMAGE = torch.linspace(-3, 3, 2 * 3 * 16 * 16).sin().view(2, 3, 16, 16)
SOUND = torch.linspace(-3, 3, 2 * 4 * 10).sin().view(2, 4, 10)
BOTH = {"input_ids": WORDS, "decoder_input_ids": WORDS}
LONG = {"vocab_size": 20, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
LLAMA = LONG | BERT | {"num_attention_heads": 4, "num_key_value_heads": 2}
SEQ2SEQ = {
    f"{side}_{what}": size
    for side in ("encoder", "decoder")
    for what, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 24}.items()
}


@functools.cache
def library():
    """`transformers`, which takes seconds to import: only where these tests run, not wherever they are collected."""
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def named(kind, **options):
    """The model class `kind` made from a configuration with these options."""

    def make(**more):
        cls = getattr(library(), kind)
        return cls(cls.config_class(**options, **more)).eval()

    return make


# the model, its example by position and by name, and how many axes a person counts
MODELS = {
    # a stream, for each layer heads, their width and the feed-forward part, and the pooler
    "bert-classifier": (
        named("BertForSequenceClassification", **LONG, **BERT, num_labels=3),
        (WORDS,),
        {},
        1 + 2 * 3 + 1,
    ),
    "bert-masked": (named("BertForMaskedLM", **LONG, **BERT), (WORDS,), {}, 1 + 2 * 3),
    "roberta": (named("RobertaForSequenceClassification", **LONG, **BERT, num_labels=3), (WORDS,), {}, 1 + 2 * 3 + 1),
    "electra": (
        named("ElectraForSequenceClassification", **LONG, **BERT, embedding_size=8, num_labels=3),
        (WORDS,),
        {},
        2 + 2 * 3 + 1,
    ),
    "albert": (
        named("AlbertForSequenceClassification", **LONG, **BERT, embedding_size=8, num_labels=3),
        (WORDS,),
        {},
        2 + 3 + 1,  # all layers are one
    ),
    "deberta": (
        named(
            "DebertaV2ForSequenceClassification",
            **LONG,
            **BERT,
            num_labels=3,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        ),
        (WORDS,),
        {},
        None,
    ),
    "distilbert": (
        named(
            "DistilBertForSequenceClassification",
            vocab_size=20,
            max_position_embeddings=16,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=24,
            num_labels=3,
        ),
        (WORDS,),
        {},
        1 + 2 * 3 + 1,
    ),
    "gpt2": (
        named(
            "GPT2LMHeadModel",
            vocab_size=20,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=16,
            bos_token_id=1,
            eos_token_id=2,
        ),
        (WORDS,),
        {},
        1 + 2 * 3,
    ),
    "opt": (
        named(
            "OPTForCausalLM",
            **LONG,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=24,
            word_embed_proj_dim=16,
        ),
        (WORDS,),
        {},
        1 + 2 * 3,
    ),
    "bloom": (
        named("BloomForCausalLM", vocab_size=20, hidden_size=16, n_layer=2, n_head=2),
        (WORDS,),
        {},
        1 + 2 * 2,  # the slopes of ALiBi are written for each head
    ),
    # rotary positions hold the width of a head, so heads are cut, each key's with its queries
    "llama": (named("LlamaForCausalLM", **LLAMA), (WORDS,), {}, 1 + 2 * 2),
    "mistral": (named("MistralForCausalLM", **LLAMA), (WORDS,), {}, 1 + 2 * 2),
    "qwen2": (named("Qwen2ForCausalLM", **LLAMA), (WORDS,), {}, 1 + 2 * 2),
    "gemma": (named("GemmaForCausalLM", **LLAMA, head_dim=4), (WORDS,), {}, 1 + 2 * 2),
    # rotary positions on a part of every head only
    "phi": (named("PhiForCausalLM", **LLAMA), (WORDS,), {}, None),
    "neox": (named("GPTNeoXForCausalLM", **LONG, **BERT), (WORDS,), {}, None),
    "t5": (
        named("T5ForConditionalGeneration", vocab_size=20, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=2),
        (),
        BOTH,
        None,
    ),
    "bart": (named("BartForConditionalGeneration", **LONG, **SEQ2SEQ, d_model=16), (), BOTH, None),
    "whisper": (
        named(
            "WhisperForConditionalGeneration",
            vocab_size=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            d_model=16,
            num_mel_bins=4,
            max_source_positions=5,
            max_target_positions=10,
            **SEQ2SEQ,
        ),
        (),
        {"input_features": SOUND, "decoder_input_ids": WORDS},
        2 + 3 + 1 + 5,
    ),
    "wav2vec2": (
        named(
            "Wav2Vec2ForSequenceClassification",
            **BERT,
            conv_dim=(8, 8),
            conv_stride=(2, 2),
            conv_kernel=(3, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=12,
            num_labels=3,
        ),
        (torch.linspace(-9, 9, 120).sin().view(2, 60),),
        {},
        None,
    ),
    "vit": (
        named("ViTForImageClassification", **BERT, image_size=16, patch_size=8, num_labels=3),
        (IMAGE,),
        {},
        1 + 2 * 3,
    ),
    "swin": (
        named(
            "SwinForImageClassification",
            image_size=16,
            patch_size=2,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=2,
            num_labels=3,
        ),
        (IMAGE,),
        {},
        None,
    ),
    "convnext": (
        named(
            "ConvNextForImageClassification",
            hidden_sizes=[8, 12],
            depths=[1, 1],
            num_stages=2,
            patch_size=4,
            image_size=16,
            num_labels=3,
        ),
        (IMAGE,),
        {},
        2 + 2,
    ),
    "resnet": (
        named("ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], num_labels=3),
        (IMAGE,),
        {},
        None,
    ),
}
PADDED = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
# what devices meet every day: padded batches, and attention with a single head (of keys)
VARIANTS = {
    "bert-padded": (MODELS["bert-classifier"][0], (WORDS,), {"attention_mask": PADDED}, 1 + 2 * 3 + 1),
    "bert-not-padded": (
        MODELS["bert-classifier"][0],
        (WORDS,),
        {"attention_mask": torch.ones_like(WORDS)},
        1 + 2 * 3 + 1,
    ),
    "gpt2-padded": (MODELS["gpt2"][0], (WORDS,), {"attention_mask": PADDED}, 1 + 2 * 3),
    "llama-padded": (MODELS["llama"][0], (WORDS,), {"attention_mask": PADDED}, 1 + 2 * 2),
    "bert-of-one-head": (
        named("BertForSequenceClassification", **(LONG | BERT | {"num_attention_heads": 1}), num_labels=3),
        (WORDS,),
        {},
        None,
    ),
    "llama-of-one-key": (named("LlamaForCausalLM", **(LLAMA | {"num_key_value_heads": 1})), (WORDS,), {}, None),
}
ALL = MODELS | VARIANTS
every = pytest.mark.parametrize("name", mostly_slow(ALL, quick=4))
_traced = {}


def traced(name):
    """The model, its map and its example; made once a process, as nothing here may change them."""
    if name not in _traced:
        torch.manual_seed(0)
        build, example, kwexample, _ = ALL[name]
        model = build()
        _traced[name] = model, nestling.trace(model, *example, **kwexample), example, kwexample
    return _traced[name]


@every
def test_traced_and_proved(name):
    model, axes, example, kwexample = traced(name)
    report = nestling.check(model, axes, *example, **kwexample)
    report.raise_if_bad()
    if ALL[name][3] is not None:
        assert len(axes.axes) == ALL[name][3], axes.axes
        assert report.coverage > 0.9


@every
def test_half_trains_a_step(name):
    model, axes, example, kwexample = traced(name)
    assert_trains(_calm(model), axes, nestling.plan(axes, width=0.5), example, kwexample)


def _calm(model):
    """The model without chance: layers dropped at random would leave parameters without a gradient."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for rate in ("layerdrop", "drop_path", "drop_prob"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    for option, value in {"apply_spec_augment": False, "layerdrop": 0.0}.items():
        if hasattr(model.config, option):
            setattr(model.config, option, value)
    return model


@every
def test_whole_plan_is_the_same_function(name):
    model, axes, example, kwexample = traced(name)
    assert_whole_plan(model, axes, example, kwexample)


@every
def test_merging_what_was_cut_out_changes_nothing(name):
    model, axes, _, _ = traced(name)
    assert_identity(model, axes, nestling.plan(axes, width=0.5))
    assert_identity(model, axes, nestling.Plan(some_units(axes, seed=1)))


@every
def test_any_plan_cuts_aligned_slices(name):
    """Heads included; norms compute in single precision whatever they are given, hence the tolerance."""
    model, axes, example, kwexample = traced(name)
    for seed, groups in ((0, False), (1, True)):
        kept = some_units(axes, seed, groups, least=2)
        assert_order_is_free(model, axes, kept, example, kwexample, seed, tolerance=2e-5)


def test_tied_decoders_are_tied_in_sub_models():
    model, axes, _, _ = traced("bert-masked")
    embedding, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    assert axes.tied[decoder] == embedding
    small = nestling.submodel(model, axes, nestling.plan(axes, width=0.5))
    assert small.get_parameter(decoder) is small.get_parameter(embedding)
    assert small.get_parameter(decoder).shape == (20, 8)


def test_queries_are_cut_with_their_keys():
    model, axes, _, _ = traced("llama")
    heads = "model.layers.0.self_attn.q_proj.heads"
    assert axes.axes[heads] == 2
    small = nestling.submodel(model, axes, nestling.Plan({heads: [1]}))
    attention = small.model.layers[0].self_attn
    whole = model.model.layers[0].self_attn
    assert torch.equal(attention.q_proj.weight, whole.q_proj.weight[8:])
    assert torch.equal(attention.k_proj.weight, whole.k_proj.weight[4:])
    assert torch.equal(attention.o_proj.weight, whole.o_proj.weight[:, 8:])


def test_layers_are_blocks():
    for name in ("bert-classifier", "gpt2", "llama", "vit"):
        model, axes, example, kwexample = traced(name)
        assert len(axes.blocks) == 2, name
        first, _ = axes.blocks
        small = nestling.submodel(model, axes, nestling.plan(axes, blocks=[first]))
        path, _, number = first.rpartition(".")
        short = copy.deepcopy(model)
        parent, _, attribute = path.rpartition(".")
        setattr(short.get_submodule(parent), attribute, short.get_submodule(path)[int(number) : int(number) + 1])
        with torch.no_grad():
            assert torch.equal(small(*example, **kwexample).logits, short(*example, **kwexample).logits)


def test_eight_billion_parameters_are_traced_without_values():
    config = library().LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        model = library().LlamaForCausalLM(config).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) > 8e9
    axes = nestling.trace(model, torch.zeros(2, 4, dtype=torch.long))
    assert all(parameter.is_meta for parameter in model.parameters())
    layers = {
        f"model.layers.{k}.{what}": size
        for k in range(32)
        for what, size in {"self_attn.q_proj.heads": 8, "mlp.gate_proj": 14336}.items()
    }
    assert axes.axes == {"model.embed_tokens": 4096, **layers}
    assert len(axes.blocks) == 32
    small = nestling.resize(model, axes, nestling.plan(axes, width=0.5))
    assert all(parameter.is_meta for parameter in small.parameters())
    per_layer = 2048 * (2048 + 2 * 512 + 2048) + 3 * 2048 * 7168 + 2 * 2048
    assert sum(parameter.numel() for parameter in small.parameters()) == 32 * per_layer + 2 * 128256 * 2048 + 2048
