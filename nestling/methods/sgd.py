"""The one training step: backward pass, clipping, SGD or Adam, and mixed precision on GPUs.

Clients take it alone and in groups, the server in distillation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from nestling.draws import no_draws
from nestling.kernels.dense import is_dense
from nestling.kernels.device import has_kernels
from nestling.kernels.fused_sgd import FusedSGD, can_step
from nestling.settings import LocalTraining
from nestling.settings.structs import Precision
from nestling.torch_private import has_fused_sgd


def half_of(device: torch.device, precision: Precision) -> torch.dtype | None:
    """Return the half-precision type of forward passes on a device; None in full precision.

    >>> half_of(torch.device("cuda"), "full")
    """
    if precision == "full":
        return None
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


class Optimizer:
    """The optimizer of a client, a group or a distillation: backward pass, clipping, mixed precision, and the step.

    Parameters
    ----------
    parameters
        The weights.
    training, lr
        The settings of local training, and this round's learning rate.
    half
        The type of mixed precision, or None. Gradients in float16 are scaled up so that small ones do not vanish.
    buffers
        As `FusedSGD` takes them.
    fast
        Whether kernels that update all parameters at once may be used, and not only plain `torch.optim`.

    Examples
    --------
    >>> weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Optimizer([weight], LocalTraining(momentum=0.0, weight_decay=0.0, clip_norm=1.0), lr=1.0)
    >>> optimizer.step((5 * weight).sum())
    >>> weight.tolist(), weight.grad
    ([2.292893409729004, 3.292893409729004], None)
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        training: LocalTraining,
        lr: float,
        half: torch.dtype | None = None,
        buffers: list[Tensor] | None = None,
        *,
        fast: bool = True,
    ) -> None:
        self._parameters, self._clip, self._half, self._fast = parameters, training.clip_norm, half, fast
        self._device = parameters[0].device.type if parameters else "cpu"
        self._scaler = torch.amp.GradScaler(self._device) if half == torch.float16 else None
        self._fused: FusedSGD | None = None
        self._torch: torch.optim.Optimizer | None = None
        if fast and self._scaler is None and training.optimizer == "sgd" and can_step(parameters):
            self._fused = FusedSGD(parameters, lr, training.momentum, training.weight_decay, buffers)
        else:
            self._torch = _torch_optimizer(parameters, training, lr, fast)
        self._clear_gradients()

    def forward(self) -> AbstractContextManager[None]:
        """Return the context in which the loss is computed."""
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device, self._half)

    def step(self, loss: Tensor, clip: Callable[[Sequence[Tensor]], None] | None = None) -> None:
        """Compute the gradients of a loss and update the weights; `clip` replaces the clipping of the joint norm."""
        with no_draws():
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        if clip is not None:
            clip(self._parameters)
        limit = self._clip if clip is None else 0.0
        if self._fused is not None:
            self._fused.step(limit)
        else:
            self._step(limit)
        self._clear_gradients()

    def narrow(self, clients: int) -> None:
        """Continue with only the first clients of a group."""
        if self._fused is not None:
            self._fused.narrow(clients)
        for state in self._torch.state.values() if self._torch is not None else ():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim():  # a step counter is shared by all clients
                    state[name] = value[:clients]

    def _step(self, limit: float) -> None:
        assert self._torch is not None
        if self._scaler is None:
            if limit:
                nn.utils.clip_grad_norm_(self._parameters, limit, foreach=self._clip_foreach())
            self._torch.step()
            return
        self._scaler.unscale_(self._torch)
        if limit:
            nn.utils.clip_grad_norm_(self._parameters, limit)
        self._scaler.step(self._torch)
        self._scaler.update()

    def _clip_foreach(self) -> bool | None:
        """Return `foreach` for clipping: False if its kernels are not trusted, None for PyTorch's choice."""
        if not has_fused_sgd():
            return False
        return True if self._fast and has_kernels(self._parameters) else None

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _torch_optimizer(
    parameters: Sequence[Tensor], training: LocalTraining, lr: float, fast: bool
) -> torch.optim.Optimizer:
    trusted = training.optimizer == "adam" or has_fused_sgd()
    fused = True if fast and trusted and has_kernels(parameters) and all(map(is_dense, parameters)) else None
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=training.weight_decay, fused=fused)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=training.momentum, weight_decay=training.weight_decay, fused=fused
    )
