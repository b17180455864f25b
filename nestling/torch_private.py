"""All private functions of PyTorch that we use; each is tested once before it is used.

PyTorch may rename or change such a function in any release. If one is missing, or its result differs from that of the
equivalent public functions, those are used instead, and an event reports it. The imported classes, which tracing needs,
have no public equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nestling.errors import NestlingError, first_line
from nestling.events import report

try:
    from torch._ops import OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only
except ImportError as problem:
    raise NestlingError(
        f"PyTorch {torch.__version__} lacks what models are traced with ({problem}): install one from 2.6 to 2.15"
    ) from None

__all__ = [
    "OpOverload",
    "TorchDispatchMode",
    "foreach_copy_",
    "foreach_div_",
    "foreach_lerp_",
    "foreach_maximum_",
    "foreach_norm",
    "foreach_zero_",
    "fused_sgd_",
    "has_fused_sgd",
    "knows_transforms",
    "replaced",
    "transforms_active",
    "tree_leaves",
    "tree_map_only",
]

Tensors = Sequence[Tensor]


def foreach_norm(tensors: Tensors) -> list[Tensor]:
    """Return the Euclidean norm of every tensor.

    >>> foreach_norm([torch.tensor([3.0, 4.0])])
    [tensor(5.)]
    """
    return list(_chosen("_foreach_norm")(list(tensors)))


def foreach_zero_(tensors: Tensors) -> None:
    """Fill tensors with zeros."""
    _chosen("_foreach_zero_")(list(tensors))


def foreach_div_(tensors: Tensors, by: Tensor) -> None:
    """Divide tensors by a scalar tensor."""
    _chosen("_foreach_div_")(list(tensors), by)


def foreach_copy_(tensors: Tensors, given: Tensors) -> None:
    """Copy other tensors of the same shapes into `tensors`."""
    _chosen("_foreach_copy_")(list(tensors), list(given))


def foreach_lerp_(tensors: Tensors, towards: Tensors, share: float) -> None:
    """Move tensors by `share` of the way to others.

    >>> mean = torch.zeros(2)
    >>> foreach_lerp_([mean], [torch.tensor([4.0, 8.0])], 0.25)
    >>> mean
    tensor([1., 2.])
    """
    _chosen("_foreach_lerp_")(list(tensors), list(towards), share)


def foreach_maximum_(tensors: Tensors, others: Tensors) -> None:
    """Replace every value by the maximum with another tensor's."""
    _chosen("_foreach_maximum_")(list(tensors), list(others))


def fused_sgd_(
    parameters: Tensors,
    gradients: Tensors,
    momenta: Tensors,
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    first: bool = False,
    grad_scale: Tensor | None = None,
) -> None:
    """Take a step of stochastic gradient descent in one pass over memory; requires `has_fused_sgd`.

    Parameters
    ----------
    parameters, gradients
        Contiguous tensors of one floating-point type on the CPU; the parameters are changed.
    momenta
        The momentum buffers, which are changed, too; empty without momentum.
    first
        Whether this is the first step: the momenta become the gradients.
    grad_scale
        A divisor of the gradients.
    """
    torch._fused_sgd_(
        list(parameters),
        list(gradients),
        list(momenta),
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=first,
        grad_scale=grad_scale,
    )


@cache
def has_fused_sgd() -> bool:
    """Return whether `fused_sgd_` exists and works; tested once per process.

    >>> has_fused_sgd() in (True, False)
    True
    """
    return _works("_fused_sgd_", _try_fused_sgd, "torch.optim.SGD")


def transforms_active() -> bool:
    """Return whether a function transform, such as `torch.func.vmap`, is active; requires `knows_transforms`."""
    return bool(torch._C._are_functorch_transforms_active())


@cache
def knows_transforms() -> bool:
    """Return whether `transforms_active` works; tested once per process."""
    return _works("_C._are_functorch_transforms_active", _try_transforms, "plain convolutions")


def replaced() -> list[str]:
    """Return the names of private functions that are replaced by public ones; this tests all of them.

    >>> isinstance(replaced(), list)
    True
    """
    names = [name for name, (plain, _) in _LOOPS.items() if _chosen(name) is plain]
    names += [] if has_fused_sgd() else ["_fused_sgd_"]
    names += [] if knows_transforms() else ["_C._are_functorch_transforms_active"]
    return [f"torch.{name}" for name in names]


def _works(name: str, attempt: Callable[[], bool], instead: str) -> bool:
    """Return whether a function passes its test; report an event if not."""
    try:
        if attempt():
            return True
        why = "gives a wrong result"
    except Exception as problem:  # another release may raise any error
        why = f"cannot be used ({first_line(problem)})"
    report(
        "plain PyTorch", f"torch.{name} of PyTorch {torch.__version__} {why}: {instead} in its place, which is slower"
    )
    return False


@cache
def _chosen(name: str) -> Callable[..., Any]:
    """Return the function of that name, or a loop that replaces it."""
    plain, attempt = _LOOPS[name]
    return getattr(torch, name) if _works(name, lambda: attempt(getattr(torch, name), plain), "a loop") else plain


def _same(results: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(results) == len(wanted) and all(
        one.dtype == other.dtype and torch.allclose(one, other, rtol=1e-5, atol=1e-6)
        for one, other in zip(results, wanted, strict=True)
    )


def _samples(start: float) -> list[Tensor]:
    """Return tensors of two types and several shapes, without drawing random numbers."""
    return [
        (torch.arange(size, dtype=dtype, device="cpu") + start).sin()
        for size, dtype in ((1, torch.float32), (13, torch.float32), (40, torch.float64))
    ]


def _changes(*others: Any) -> Callable[[Callable[..., Any], Callable[..., Any]], bool]:
    """Return a test that compares a function that changes its first tensors with a loop."""

    def attempt(function: Callable[..., Any], plain: Callable[..., Any]) -> bool:
        changed, wanted = _samples(1.0), _samples(1.0)
        function(changed, *others)
        plain(wanted, *others)
        return _same(changed, wanted)

    return attempt


def _returns(function: Callable[..., Any], plain: Callable[..., Any]) -> bool:
    return _same(list(function(_samples(1.0))), plain(_samples(1.0)))


def _loop_norm(tensors: Tensors) -> list[Tensor]:
    return [torch.linalg.vector_norm(one) for one in tensors]


def _loop(operation: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that applies an in-place operation to every tensor; lists among its arguments are paired."""

    def loop(tensors: Tensors, *others: Any) -> None:
        for k, one in enumerate(tensors):
            operation(one, *(other[k] if isinstance(other, list) else other for other in others))

    return loop


_LOOPS: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "_foreach_norm": (_loop_norm, _returns),
    "_foreach_zero_": (_loop(Tensor.zero_), _changes()),
    "_foreach_div_": (_loop(Tensor.div_), _changes(torch.tensor(3.0, device="cpu"))),
    "_foreach_copy_": (_loop(Tensor.copy_), _changes(_samples(2.0))),
    "_foreach_lerp_": (_loop(Tensor.lerp_), _changes(_samples(2.0), 0.3)),
    "_foreach_maximum_": (_loop(lambda one, new: torch.maximum(one, new, out=one)), _changes(_samples(2.0))),
}


def _try_fused_sgd() -> bool:
    """Compare two steps in each dtype, the first without momenta, with the formula of `torch.optim.SGD`."""
    return all(
        _fused_sgd_agrees(dtype, momentum, scaled)
        for dtype in (torch.float32, torch.float64)
        for momentum in (0.0, 0.9)
        for scaled in ((True, False) if dtype == torch.float32 else (False,))
    )


def _fused_sgd_agrees(dtype: torch.dtype, momentum: float, scaled: bool) -> bool:
    lr, decay, excess = 0.1, -0.5, 2.0
    weight = (torch.arange(13, dtype=dtype, device="cpu") + 1).sin()
    slopes = [(torch.arange(13, dtype=dtype, device="cpu") + start).cos() for start in (1, 2)]
    moved, kept = weight.clone(), torch.full_like(weight, float("nan"))  # buffers are uninitialised before step 1
    wanted, velocity = weight.clone(), torch.zeros_like(weight)
    for step, slope in enumerate(slopes):
        fused_sgd_(
            [moved],
            [slope.clone()],
            [kept] if momentum else [],
            lr=lr,
            weight_decay=decay,
            momentum=momentum,
            first=step == 0 and momentum > 0,
            grad_scale=torch.tensor(excess, device="cpu") if scaled else None,
        )
        velocity = momentum * velocity + (slope / excess if scaled else slope) + decay * wanted
        wanted = wanted - lr * velocity
    return _same([moved], [wanted])


def _try_transforms() -> bool:
    inside: list[bool] = []

    def look(value: Tensor) -> Tensor:
        inside.append(transforms_active())
        return value

    outside = transforms_active()
    torch.func.vmap(look)(torch.zeros(2, device="cpu"))
    return (outside, inside) == (False, [True])
