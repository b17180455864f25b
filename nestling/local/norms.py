"""Static batch normalisation (HeteroFL, §3): batch statistics while training, statistics asked for when testing.

Running statistics gathered by clients of different widths would contradict each other, so none are kept while
training. Before a model is tested, clients run their samples through it once and tell the mean over their batches of
each layer's mean and variance. Normalisation in training mode uses the statistics of the batch alone, so what one
client tells does not depend on any other, and the server's average over all batches is exact.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nestling.draws import drawing
from nestling.local.device import exact

_SAMPLES = 100  # that run together at most: more gain nothing, and take memory
_TRIED = 4  # samples of a batch
_CLOSE = 1e-6  # in double precision rounding is far below, samples that are mixed far above
_JOINED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what was found of models in use


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The layers of a model that normalise by statistics of the batch, by name; frozen ones do not."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None and not has_frozen_weights(module):
            yield name, module


def has_frozen_weights(module: nn.Module) -> bool:
    """Whether a module is a batch norm with weights of which none is trained.

    >>> has_frozen_weights(nn.BatchNorm1d(2)), has_frozen_weights(nn.BatchNorm1d(2).requires_grad_(False))
    (False, True)
    """
    if not isinstance(module, _BatchNorm):
        return False
    weights = list(module.parameters(recurse=False))
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def keep_frozen(model: nn.Module) -> None:
    """Let the frozen norms of a model normalise by the statistics that they have, while training too.

    >>> model = nn.Sequential(nn.BatchNorm1d(1).requires_grad_(False))
    >>> keep_frozen(model)
    >>> model.train()(torch.tensor([[1.0], [3.0]])).round(), model[0].running_mean
    (tensor([[1.],
            [3.]]), tensor([0.]))
    """
    for module in model.modules():
        if has_frozen_weights(module) and _as_in_tests not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_as_in_tests)


def _as_in_tests(module: nn.Module, _: object) -> None:
    module.training = False


def static(model: nn.Module) -> None:
    """Keep a model from changing its running statistics while it trains."""
    for _, norm in batch_norms(model):
        norm.track_running_stats = False


@torch.no_grad()
def statistics(model: nn.Module, batches: Iterable[Tensor], join: bool = True) -> tuple[dict[str, Tensor], int]:
    """Return the sums over batches of every norm's mean and unbiased variance, and the number of batches.

    Only the norms are in training mode: a dropout layer or a Scaler would change what they see. Small batches of one
    shape run through the model together, but through each norm one by one: the same statistics, sooner; without `join`
    they do not.

    Returns
    -------
    tuple
        State name → sum in double precision on the CPU, of shape (channels,); how many batches it is over.

    Examples
    --------
    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> statistics(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0]])])[0]
    {'0.running_mean': tensor([7.], dtype=torch.float64), '0.running_var': tensor([2.], dtype=torch.float64)}
    """
    told = _Told()
    count = 0
    for alike in _alike(batches):
        together = join and len(alike) > 1 and _may_join(model, alike)
        for parts in [alike] if together else [[batch] for batch in alike]:
            told.ask(model, parts)
        count += len(alike)
    # a norm that is used twice in a forward tells the mean of both uses
    return {name: value.cpu().double() * count / told.uses[name] for name, value in told.sums.items()}, count


class _Told:
    """What norms tell: sums of their statistics, and how many batches, or uses, they are over."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.uses: Counter[str] = Counter()

    def ask(self, model: nn.Module, parts: Sequence[Tensor]) -> None:
        """Run some batches of one shape through a model together, and through each of its norms one by one."""
        model.eval()
        norms = list(batch_norms(model))
        before = [(norm.track_running_stats, norm.momentum) for _, norm in norms]
        for name, norm in norms:
            norm.train()
            norm.track_running_stats = True
            norm.momentum = 1.0  # running statistics become those of the last batch, in the variance's unbiased form
            norm.forward = partial(self._apart, name, norm, norm.forward, len(parts))  # type: ignore[method-assign]
        try:
            model(torch.cat(list(parts)) if len(parts) > 1 else parts[0])
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
                copy_of = exact(value)  # the next batch writes over it
                self.sums[key] = self.sums[key] + copy_of if key in self.sums else copy_of
                self.uses[key] += 1
        return torch.cat(outputs) if parts > 1 else outputs[0]


def _alike(batches: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Batches of one shape that follow each other, as many as may run together."""
    waiting: list[Tensor] = []
    for batch in batches:
        if waiting and (batch.shape != waiting[0].shape or (len(waiting) + 1) * len(batch) > _SAMPLES):
            yield waiting
            waiting = []
        waiting.append(batch)
    if waiting:
        yield waiting


def _may_join(model: nn.Module, batches: Sequence[Tensor]) -> bool:
    """Whether batches may run through a model together: found by trying, once, in double precision.

    Not where its forward looks at the number of samples, or mixes samples elsewhere than in norms.
    """
    if model not in _JOINED:
        try:
            with drawing(torch.Generator().manual_seed(0)):  # for a forward that draws, too
                _JOINED[model] = _agree(copy.deepcopy(model).cpu().double(), batches)
        except Exception:  # whatever a forward does with what it does not expect; what is wrong anyway comes again
            _JOINED[model] = False
    return _JOINED[model]


def _agree(model: nn.Module, batches: Sequence[Tensor]) -> bool:
    """Whether two batches tell the same together and one by one."""
    for parameter in model.parameters():  # with noise, as weights of zero, and samples that are alike, hide mixing
        parameter.nan_to_num_(0, 0, 0).add_(0.1 * torch.randn_like(parameter))
    parts = [batch[:_TRIED].cpu() for batch in batches[:2]]
    if parts[0].is_floating_point():
        parts = [part.double() + torch.randn_like(part, dtype=torch.float64) for part in parts]
    one_by_one, together = _Told(), _Told()
    for part in parts:
        one_by_one.ask(model, [part])
    together.ask(model, parts)
    told = one_by_one.sums.items()
    return all(torch.allclose(value, together.sums[name], rtol=_CLOSE, atol=_CLOSE) for name, value in told)


def averaged(parts: Iterable[tuple[Mapping[str, Tensor], int]]) -> dict[str, Tensor]:
    """Return the statistics of all batches from the sums of several clients, in the order given.

    >>> averaged([({"norm.running_mean": torch.tensor([2.0])}, 2), ({"norm.running_mean": torch.tensor([4.0])}, 1)])
    {'norm.running_mean': tensor([2.])}
    """
    totals: dict[str, Tensor] = {}
    batches = 0
    for sums, count in parts:
        batches += count
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return {name: total / batches for name, total in totals.items()}
