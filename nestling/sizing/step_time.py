"""The measured time of a training step of a sub-model."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.shapes import outputs_of
from nestling.cut import Plan, resize
from nestling.safe_kernels import SafeKernels, guard
from nestling.seeds import torch_stream
from nestling.torch_private import tree_map_only

STEPS = 20  # measured, of which the median counts
_WARM_UP = 3  # steps before: the first ones allocate and choose kernels


def submodel_seconds(
    model: nn.Module, axes: AxisMap, plan: Plan, *args: Any, limit: float = math.inf, **kwargs: Any
) -> float:
    """Return the median seconds of a training step of a sub-model, which gets small random weights.

    `limit` is that of `step_seconds`.
    """
    args, kwargs = tree_map_only(Tensor, Tensor.contiguous, (args, kwargs))
    small = resize(model, axes, plan).to_empty(device="cpu")
    random = torch_stream(0, "step time")
    with torch.no_grad():
        for tensor in [*small.parameters(), *small.buffers()]:
            if tensor.is_floating_point():  # positive, as variances must be; uninitialised memory may hold subnormals
                tensor.copy_(torch.rand(tensor.shape, generator=random) * 0.1 + 0.01)
            else:
                tensor.zero_()
    return step_seconds(small, *args, limit=limit, **kwargs)


def step_seconds(model: nn.Module, *args: Any, steps: int = STEPS, limit: float = math.inf, **kwargs: Any) -> float:
    """Return the median seconds of a training step: forward, backward, and an update with plain SGD.

    It runs in one thread, as clients do unless `threads` is set. The model is trained, so its weights change. Once
    three steps in a row, the first one left out, take more than twice the `limit`, no more are run: the model is too
    slow, and the median of those three says so.

    >>> 0 < step_seconds(nn.Linear(4, 2), torch.ones(8, 4), steps=3) < 60
    True
    """
    plain = not kwargs and all(isinstance(value, Tensor) for value in args)
    if plain:
        guard(model, *args)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    times = []
    # dropout may draw from PyTorch's generator, whose state the caller gets back
    kernels = nullcontext() if plain else SafeKernels()
    with _one_thread(), torch.random.fork_rng(devices=[]), torch.enable_grad(), kernels:
        for _ in range(_WARM_UP + steps):
            start = time.perf_counter()
            losses = [out.float().mean() for out in outputs_of(model(*args, **kwargs)) if out.requires_grad]
            if losses:
                torch.stack(losses).sum().backward()
            with torch.no_grad():
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=1e-6)
                        parameter.grad = None
            times.append(time.perf_counter() - start)
            if len(times) > 3 and min(times[-3:]) > 2 * limit:
                return statistics.median(times[-3:])
    return statistics.median(times[_WARM_UP:])


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
