"""Stochastic gradient descent on the CPU, which clips in the same pass over the weights.

It calls the fused kernel of ``torch.optim.SGD(fused=True)`` directly: PyTorch's code around it takes as long as the
rest of a small model's step. The arithmetic is the same, except that a clipped gradient is divided by norm / limit,
where PyTorch multiplies by the inverse: results agree up to the last bit or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestling.kernels.dense import as_rows, is_dense
from nestling.torch_private import foreach_div_, foreach_norm, foreach_zero_, fused_sgd_, has_fused_sgd

_DTYPES = ({torch.float32}, {torch.float64})  # the types that the fused kernel supports


class FusedSGD:
    """SGD with momentum and weight decay.

    Parameters
    ----------
    parameters
        The weights, which `can_step` accepts.
    lr, momentum, weight_decay
        As `torch.optim.SGD` takes them.
    buffers
        Momenta of an earlier optimizer, whose memory is reused if their shapes fit; otherwise new ones are put into
        the list. Their values are ignored.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = FusedSGD([weight], lr=1.0)
    >>> (5 * weight).sum().backward()
    >>> optimizer.step(clip_norm=1.0)
    >>> weight.tolist()
    [2.292893409729004, 3.292893409729004]
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
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
        """Take a step along the gradients, with their norm clipped to `clip_norm` unless that is 0."""
        gradients = [parameter.grad for parameter in self._parameters]
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        first = not self._momenta and len(used) == len(gradients)  # then the kernel initialises all momenta itself
        if self._momentum and not self._momenta:
            self._momenta = self._new_momenta(zero=not first)
        if not used:
            return
        used_gradients = [_aligned(gradients[k], self._parameters[k]) for k in used]
        excess = _excess(used_gradients, clip_norm) if clip_norm else None
        if excess is not None and excess.dtype != torch.float32:  # the kernel supports no scale in double precision
            foreach_div_(used_gradients, excess)
            excess = None
        fused_sgd_(
            [_memory(self._parameters[k]) for k in used],
            used_gradients,
            [_memory(self._momenta[k]) for k in used] if self._momentum else [],
            lr=self._lr,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            first=first and self._momentum > 0,
            grad_scale=excess,
        )

    def narrow(self, rows: int) -> None:
        """Continue with only the first rows of all parameters."""
        self._momenta = [momentum[:rows] for momentum in self._momenta]

    def _new_momenta(self, zero: bool) -> list[Tensor]:
        """Return tensors for momenta with the shapes and strides of the parameters."""
        pairs = list(zip(self._buffers, self._parameters, strict=False))
        alike = all((old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype) for old, new in pairs)
        if not alike or len(self._buffers) != len(self._parameters):
            self._buffers[:] = [torch.empty_like(parameter) for parameter in self._parameters]
        if zero:
            foreach_zero_(self._buffers)
        return list(self._buffers)


def can_step(parameters: Sequence[Tensor]) -> bool:
    """Return whether the kernel supports these parameters: it would write into gaps in their memory."""
    return (
        has_fused_sgd()
        and all(one.is_cpu and is_dense(one) for one in parameters)
        and {one.dtype for one in parameters} in _DTYPES
    )


def _memory(tensor: Tensor) -> Tensor:
    """Return a contiguous view for the kernel, which would copy a tensor with other strides."""
    return tensor if tensor.is_contiguous() else as_rows(tensor)


def _aligned(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return the memory of a gradient with its parameter's strides, which it mostly has already."""
    assert gradient is not None
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return _memory(gradient)


def _excess(gradients: list[Tensor], limit: float) -> Tensor:
    """Return the norm of the gradients divided by its limit, and at least 1."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(foreach_norm(gradients)))
    return ((norm + 1e-6) / limit).clamp(min=1.0)
