"""Gradient descent: what changes a client's weights, fresh in every round.

On the CPU, stochastic gradient descent calls the fused kernel behind ``torch.optim.SGD(fused=True)`` itself, and clips
in the same pass over the weights: what PyTorch does around that kernel takes as long as the rest of a small model's
step. The arithmetic is the same, but that a clipped gradient is divided by how much too long it is, where PyTorch
multiplies by the inverse: they agree to the last bit or two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nestling.local.config import Local
from nestling.local.device import has_kernels
from nestling.local.flat import dense, flat
from nestling.torch_private import foreach_div_, foreach_norm, foreach_zero_, fused_sgd_, has_fused_sgd

_KERNEL = ({torch.float32}, {torch.float64})  # what the fused kernel takes


class Descent:
    """The optimiser of one client, or of a cohort, which remembers nothing yet.

    Parameters
    ----------
    parameters
        What it changes.
    how, lr
        The settings of training, and this round's learning rate.
    direct
        Whether the kernel may be called without PyTorch's optimiser, where it can.
    fast
        Whether kernels that go through all parameters at once may be used; else plain `torch.optim` does the work.
    room
        Tensors of the last client of this shape, in whose memory this one's momenta are kept; filled where they do
        not fit. What they held counts for nothing.

    Attributes
    ----------
    torch
        PyTorch's optimiser where that is used: for Adam, and on other devices than the CPU; else None.

    Examples
    --------
    >>> weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> descent = Descent([weight], Local(momentum=0.0, weight_decay=0.0), lr=1.0)
    >>> (5 * weight).sum().backward()
    >>> descent.step(clip=1.0)
    >>> weight.tolist(), weight.grad
    ([2.292893409729004, 3.292893409729004], None)
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        how: Local,
        lr: float,
        direct: bool = True,
        room: list[Tensor] | None = None,
        *,
        fast: bool = True,
    ) -> None:
        self._parameters = parameters
        self._how, self._lr, self._fast = how, lr, fast
        direct = fast and direct and how.optimizer == "sgd" and _plain(parameters) and has_fused_sgd()
        self.torch = None if direct else _optimizer(parameters, how, lr, fast)
        self._room: list[Tensor] = [] if room is None else room
        self._momenta: list[Tensor] = []
        self.forget()

    def forget(self) -> None:
        """Let go of all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, clip: float = 0.0) -> None:
        """Take a step along gradients that are together no longer than `clip`, and let go of them."""
        if self.torch is None:
            self._direct(clip)
        else:
            if clip:
                nn.utils.clip_grad_norm_(self._parameters, clip, foreach=self._at_once())
            self.torch.step()
        self.forget()

    def _at_once(self) -> bool | None:
        """Whether PyTorch clips all gradients at once: not by kernels that cannot be trusted; None as it likes."""
        if not has_fused_sgd():
            return False
        return True if self._fast and has_kernels(self._parameters) else None

    def narrow(self, clients: int) -> None:
        """Go on with the first clients of a cohort alone."""
        self._momenta = [momentum[:clients] for momentum in self._momenta]
        for kept in self.torch.state.values() if self.torch is not None else ():
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.dim():  # a counter of steps is everybody's
                    kept[name] = value[:clients]

    def _direct(self, clip: float) -> None:
        how = self._how
        gradients = [parameter.grad for parameter in self._parameters]
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        whole = len(used) == len(gradients)
        first = not self._momenta and whole  # then nobody needs to have written zeros there
        if how.momentum and not self._momenta:
            self._momenta = self._blank(zero=not first)
        if not used:
            return
        moved = [_laid(gradients[k], self._parameters[k]) for k in used]
        excess = _excess(moved, clip) if clip else None
        if excess is not None and excess.dtype != torch.float32:  # the kernel knows none in double precision
            foreach_div_(moved, excess)
            excess = None
        fused_sgd_(
            [_memory(self._parameters[k]) for k in used],
            moved,
            [_memory(self._momenta[k]) for k in used] if how.momentum else [],
            lr=self._lr,
            weight_decay=how.weight_decay,
            momentum=how.momentum,
            first=first and how.momentum > 0,
            grad_scale=excess,
        )

    def _blank(self, zero: bool) -> list[Tensor]:
        """Room for momenta, which lie in memory as the parameters do."""
        pairs = list(zip(self._room, self._parameters, strict=False))
        alike = all((old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype) for old, new in pairs)
        if not alike or len(self._room) != len(self._parameters):
            self._room[:] = [torch.empty_like(parameter) for parameter in self._parameters]
        if zero:
            foreach_zero_(self._room)
        return list(self._room)


def _memory(tensor: Tensor) -> Tensor:
    """What the kernel is given: it goes through memory, and copies gradients first that lie in another order."""
    return tensor if tensor.is_contiguous() else flat(tensor)


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


def _plain(parameters: list[nn.Parameter]) -> bool:
    """Whether the kernel takes all parameters at once: where one has gaps in memory, it would write into them."""
    return all(one.is_cpu and dense(one) for one in parameters) and {one.dtype for one in parameters} in _KERNEL


def _optimizer(parameters: list[nn.Parameter], how: Local, lr: float, fast: bool) -> torch.optim.Optimizer:
    fused = True if fast and has_kernels(parameters) and all(dense(one) for one in parameters) else None
    if how.optimizer == "sgd" and not has_fused_sgd():
        fused = None
    if how.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=how.weight_decay, fused=fused)
    return torch.optim.SGD(parameters, lr=lr, momentum=how.momentum, weight_decay=how.weight_decay, fused=fused)
