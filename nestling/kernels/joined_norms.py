"""Statistics of batch norms, for several batches at a time.

Small batches of one shape run through a model together, but through each norm one by one: the same statistics in less
time. A trial finds out once whether a model allows that.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nestling.draws import drawing
from nestling.kernels.batch_norms import batch_norms
from nestling.kernels.device import exact
from nestling.model_inputs import Inputs, chosen, count, forward, joined, mapped, tensors_of

_MAX_SAMPLES = 100  # most samples that run together: more gain nothing, and take memory
_TRIAL_SAMPLES = 4  # samples of a batch in a trial
_CLOSE = 1e-6  # rounding errors in double precision are far below, differences by mixed samples far above
_JOINED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # results of trials


class NormSums:
    """Sums of the statistics of norms by state name, and the number of batches that each sum is over."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.uses: Counter[str] = Counter()

    def add(self, model: nn.Module, parts: Sequence[Inputs]) -> None:
        """Run some batches of one shape through a model together, and through each of its norms one by one."""
        model.eval()
        norms = list(batch_norms(model))
        before = [(norm.track_running_stats, norm.momentum) for _, norm in norms]
        for name, norm in norms:
            norm.train()
            norm.track_running_stats = True
            norm.momentum = 1.0  # running statistics become those of the last batch, with unbiased variance
            norm.forward = partial(self._apart, name, norm, norm.forward, len(parts))  # type: ignore[method-assign]
        try:
            forward(model, joined(parts) if len(parts) > 1 else parts[0])
        finally:
            for (_, norm), (tracks, momentum) in zip(norms, before, strict=True):
                norm.track_running_stats, norm.momentum = tracks, momentum
                del norm.forward

    def _apart(
        self, name: str, norm: _BatchNorm, forward: Callable[[Tensor], Tensor], parts: int, inputs: Tensor
    ) -> Tensor:
        outputs = []
        for part in inputs.split(len(inputs) // parts):
            outputs.append(forward(part))
            for key, value in ((f"{name}.running_mean", norm.running_mean), (f"{name}.running_var", norm.running_var)):
                assert value is not None
                copied = exact(value)  # the next batch overwrites it
                self.sums[key] = self.sums[key] + copied if key in self.sums else copied
                self.uses[key] += 1
        return torch.cat(outputs) if parts > 1 else outputs[0]


def runs_of_one_shape(batches: Iterable[Inputs]) -> Iterator[list[Inputs]]:
    """Yield lists of consecutive batches of one shape, as many as may run together."""
    waiting: list[Inputs] = []
    for batch in batches:
        many = waiting and (len(waiting) + 1) * count(batch) > _MAX_SAMPLES
        if many or (waiting and _sizes(batch) != _sizes(waiting[0])):
            yield waiting
            waiting = []
        waiting.append(batch)
    if waiting:
        yield waiting


def may_join(model: nn.Module, batches: Sequence[Inputs]) -> bool:
    """Return whether batches may run through a model together, by a trial in double precision that is made once.

    They may not if the forward depends on the number of samples, or mixes samples elsewhere than in norms.
    """
    if model not in _JOINED:
        try:
            with drawing(torch.Generator().manual_seed(0)):  # for models that draw random numbers
                _JOINED[model] = _agree(copy.deepcopy(model).cpu().double(), batches)
        except Exception:  # a forward may fail in any way here; errors of the model itself will be raised again
            _JOINED[model] = False
    return _JOINED[model]


def _agree(model: nn.Module, batches: Sequence[Inputs]) -> bool:
    """Return whether two batches give the same statistics together and one by one."""
    for parameter in model.parameters():  # add noise, as zero weights and equal samples would hide mixing
        parameter.nan_to_num_(0, 0, 0).add_(0.1 * torch.randn_like(parameter))
    parts = [mapped(_noisy, chosen(batch, slice(_TRIAL_SAMPLES))) for batch in batches[:2]]
    one_by_one, together = NormSums(), NormSums()
    for part in parts:
        one_by_one.add(model, [part])
    together.add(model, parts)
    expected = one_by_one.sums.items()
    return all(torch.allclose(value, together.sums[name], rtol=_CLOSE, atol=_CLOSE) for name, value in expected)


def _noisy(values: Tensor) -> Tensor:
    """Return numbers with noise, in double precision; whole numbers stay as they are."""
    values = values.cpu()
    return values.double() + torch.randn_like(values, dtype=torch.float64) if values.is_floating_point() else values


def _sizes(batch: Inputs) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_of(batch)]
