"""Tracing big models without their memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from importlib.util import find_spec

import torch

from bench.figure import Figure
from bench.timing import side_by_side
from nestling.axes import trace
from nestling.nets import build, example


def traces(quick: bool = False) -> Iterator[Figure]:
    """Seconds to trace big models; the first trace of a process, which imports, apart."""
    with torch.device("meta"):
        wide = build("wide-resnet101-2")
    inputs = example("wide-resnet101-2", batch=1)
    (seconds,) = side_by_side(lambda: trace(wide, *inputs), repeats=1 if quick else 3)
    yield Figure("trace of wide-resnet101-2", seconds, "s", "< 0.5", seconds < 0.5, "125 million parameters")
    if quick or find_spec("transformers") is None:
        return
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - an optional extra

    shape = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = torch.zeros(1, 16, dtype=torch.long)
    (seconds,) = side_by_side(lambda: trace(llama, words), repeats=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = sum(parameter.numel() for parameter in llama.parameters()) / 1e9
    yield Figure(
        "trace of Llama-8B", seconds, "s", "< 2", seconds < 2, f"{size:.1f} billion parameters, {grown:.0f} MB more"
    )
