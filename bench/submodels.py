"""Training steps of NeFL's sub-models against the whole model: time and memory as measured, beside MACs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bench.apart import apart, most_memory
from bench.apart import memory as memory_now
from bench.figure import Figure
from bench.merges import MODEL
from bench.timing import side_by_side
from nestling.axes import trace
from nestling.cut import cost, submodel
from nestling.methods.nefl.nefl_plans import nefl_plan
from nestling.nets import build, example


def submodels(quick: bool = False) -> Iterator[Figure]:
    """A training step of NeFL's sub-models against the whole model."""
    sizes = (0.2, 1.0) if quick else (0.2, 0.4, 0.6, 0.8, 1.0)
    repeats, batch, large = (1, 2, 4) if quick else (3, 32, 256)
    steps = {gamma: _step(gamma, batch) for gamma in sizes}
    whole, peak = side_by_side(steps[1.0][0], repeats=repeats)[0], apart(step_and_tell_peak, 1.0, large)
    before = 0.0
    for gamma in sizes[:-1]:
        action, macs = steps[gamma]
        seconds, full = side_by_side(action, steps[1.0][0], repeats=repeats)
        ratio, memory = seconds / full, apart(step_and_tell_peak, gamma, large) / peak
        yield Figure(
            f"training step of NeFL's {gamma:g} of resnet18",
            ratio,
            "× whole",
            "rises with its size, < 1",
            before < ratio < 1 and memory < 1,
            f"{macs / steps[1.0][1]:.2f} of its MACs; {memory:.2f} of its memory; the whole takes {whole:.2f} s",
        )
        before = ratio


def _step(gamma: float, batch: int) -> tuple[Callable[[], None], int]:
    """A training step of one of NeFL's sub-models (WD), and the MACs of its forward pass."""
    model = build(MODEL)
    axes = trace(model, *example(MODEL))
    slice_plan = nefl_plan(axes, frozenset(name for name, _ in model.named_parameters()), gamma)
    small = submodel(model, axes, slice_plan).train()
    inputs = torch.randn(batch, *example(MODEL)[0].shape[1:])

    def step() -> None:
        small.zero_grad()
        torch.nn.functional.cross_entropy(small(inputs), torch.zeros(batch, dtype=torch.long)).backward()

    return step, cost(model, axes, slice_plan, *example(MODEL)).macs


def step_and_tell_peak(gamma: float, batch: int) -> int:
    """Train one of NeFL's sub-models a step, and return the most memory (KiB) that took beyond what was in use before.

    The batch should be large, so that the step takes more than building the model did.
    """
    step, _ = _step(gamma, batch)
    before = memory_now()
    step()
    return max(0, most_memory() - before)  # the kernel's count is a little behind
