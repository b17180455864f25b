"""Stochastic gradient descent on the CPU, which clips in the same pass over the weights.

It calls the fused kernel behind ``torch.optim.SGD(fused=True)`` itself: what PyTorch does around that kernel takes as
long as the rest of a small model's step. The arithmetic is the same, but that a clipped gradient is divided by how much
too long it is, where PyTorch multiplies by the inverse: they agree to the last bit or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nestling.kernels.dense import as_rows, is_dense
from nestling.torch_private import foreach_div_, foreach_norm, foreach_zero_, fused_sgd_, has_fused_sgd

_DTYPES = ({torch.float32}, {torch.float64})  # that the fused kernel takes


class FusedSGD:
    """SGD with momentum and weight decay, without momenta at first.

    Parameters
    ----------
    parameters
        The weights, which `can_step` accepts.
    lr, momentum, weight_decay
        As `torch.optim.SGD` takes them.
    buffers
        Tensors of an earlier optimizer for weights of the same shapes, whose memory is used for the momenta; filled
        where they do not fit. Their values do not matter.

    Examples
    --------
    >>> weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = FusedSGD([weight], lr=1.0)
    >>> (5 * weight).sum().backward()
    >>> optimizer.step(clip_norm=1.0)
    >>> weight.tolist()
    [2.292893409729004, 3.292893409729004]
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        buffers: list[Tensor] | None = None,
    ) -> None:
        self._parameters = parameters
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._buffers: list[Tensor] = [] if buffers is None else buffers
        self._momenta: list[Tensor] = []

    @torch.no_grad()
    def step(self, clip_norm: float = 0.0) -> None:
        """Take a step along gradients whose norm is first reduced to `clip_norm`, unless that is 0."""
        gradients = [parameter.grad for parameter in self._parameters]
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        first = not self._momenta and len(used) == len(gradients)  # then the kernel writes all momenta itself
        if self._momentum and not self._momenta:
            self._momenta = self._blank(zero=not first)
        if not used:
            return
        moved = [_laid(gradients[k], self._parameters[k]) for k in used]
        excess = _excess(moved, clip_norm) if clip_norm else None
        if excess is not None and excess.dtype != torch.float32:  # the kernel knows none in double precision
            foreach_div_(moved, excess)
            excess = None
        fused_sgd_(
            [_memory(self._parameters[k]) for k in used],
            moved,
            [_memory(self._momenta[k]) for k in used] if self._momentum else [],
            lr=self._lr,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            first=first and self._momentum > 0,
            grad_scale=excess,
        )

    def narrow(self, rows: int) -> None:
        """Go on with the first rows of all parameters alone."""
        self._momenta = [momentum[:rows] for momentum in self._momenta]

    def _blank(self, zero: bool) -> list[Tensor]:
        """Return memory for momenta, laid out as the parameters are."""
        pairs = list(zip(self._buffers, self._parameters, strict=False))
        alike = all((old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype) for old, new in pairs)
        if not alike or len(self._buffers) != len(self._parameters):
            self._buffers[:] = [torch.empty_like(parameter) for parameter in self._parameters]
        if zero:
            foreach_zero_(self._buffers)
        return list(self._buffers)


def can_step(parameters: Sequence[Tensor]) -> bool:
    """Whether the kernel takes these parameters: where one has gaps in memory, it would write into them."""
    return (
        has_fused_sgd()
        and all(one.is_cpu and is_dense(one) for one in parameters)
        and {one.dtype for one in parameters} in _DTYPES
    )


def _memory(tensor: Tensor) -> Tensor:
    """What the kernel is given: it goes through memory, and copies gradients first that lie in another order."""
    return tensor if tensor.is_contiguous() else as_rows(tensor)


def _laid(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return the memory of a gradient, which must lie as its parameter does: autograd mostly sees to that."""
    assert gradient is not None
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return _memory(gradient)


def _excess(gradients: list[Tensor], limit: float) -> Tensor:
    """How many times too long gradients are: at least once."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(foreach_norm(gradients)))
    return ((norm + 1e-6) / limit).clamp(min=1.0)
