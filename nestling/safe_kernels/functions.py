"""Functions that replace unsafe kernels and compute the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Sizes = tuple[int, ...]
Size = int | Sequence[int]


class SafeKernels(TorchFunctionMode):
    """A context in which unsafe convolutions and norms are replaced by safe ones.

    Every call of PyTorch takes a few microseconds longer inside.

    >>> images, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 1, 1)
    >>> with SafeKernels():
    ...     safe = F.conv2d(images, weight, stride=2)
    >>> torch.equal(safe, F.conv2d(images, weight, stride=2))
    True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, or its safe replacement."""
        return INSTEAD.get(func, func)(*args, **(kwargs or {}))


def convolve(  # noqa: PLR0917 (the arguments of PyTorch)
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Return the convolution of images, or of sequences, computed by safe kernels.

    Parameters
    ----------
    images
        (batch, channels, height, width) or (batch, channels, length); the batch dimension is optional.
    weight, bias, stride, padding, dilation, groups
        As in `torch.nn.functional.conv2d` and `conv1d`.

    Examples
    --------
    >>> convolve(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 1, 1), stride=2).shape
    torch.Size([2, 4, 4, 4])
    """
    plain = F.conv1d if weight.dim() == 3 else F.conv2d
    if images.device.type != "cpu":
        return plain(images, weight, bias, stride, padding, dilation, groups)
    kernel = tuple(weight.shape[2:])
    if bias is not None and some_column_is_blind(images.shape[-1], kernel[-1], *at_end(padding, dilation)):
        images, padding = F.pad(images, _around(kernel, padding, each(dilation, kernel))), 0
    steps = each(stride, kernel)
    if strided_points(kernel, steps, padding):
        images, stride = _Thinned.apply(images, steps), 1
    return plain(images, weight, bias, stride, padding, dilation, groups)


def convolve_transposed(  # noqa: PLR0917
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Return the transposed convolution of images, or of sequences, computed by safe kernels.

    Its arguments are those of `torch.nn.functional.conv_transpose2d` and `conv_transpose1d`.

    >>> convolve_transposed(torch.randn(2, 3, 4, 4), torch.randn(3, 4, 1, 1), stride=2, output_padding=1).shape
    torch.Size([2, 4, 8, 8])
    """
    plain = F.conv_transpose1d if weight.dim() == 3 else F.conv_transpose2d
    kernel = tuple(weight.shape[2:])
    steps, more = each(stride, kernel), each(output_padding, kernel)
    if images.device.type != "cpu" or not strided_points(kernel, steps, padding):
        return plain(images, weight, bias, stride, padding, output_padding, groups, dilation)
    points: Tensor = plain(images, weight, groups=groups)
    sizes = points.shape[-len(steps) :]
    full = tuple((size - 1) * step + 1 + extra for size, step, extra in zip(sizes, steps, more, strict=True))
    spread: Tensor = _Spread.apply(points, steps, full)
    return spread if bias is None else spread + bias.view(-1, *[1] * len(kernel))


def instance_norm(*args: Any, **kwargs: Any) -> Tensor:
    """Return `torch.nn.functional.instance_norm` with a correct gradient for a single sample.

    >>> instance_norm(torch.randn(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """
    return _with_plain_slope(F.instance_norm, *args, **kwargs)


class _Thinned(torch.autograd.Function):
    """Selects pixels by strides; the gradient is spread over zeros in the memory format of the pixels."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, steps: Sizes) -> Tensor:
        return images[_points(steps)].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Sizes], output: Tensor) -> None:
        images, ctx.steps = inputs
        ctx.size = tuple(images.shape[-len(ctx.steps) :])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(slope, ctx.steps, ctx.size), None


class _Spread(torch.autograd.Function):
    """The inverse of `_Thinned`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(points: Tensor, steps: Sizes, size: Sizes) -> Tensor:
        before = points.shape[: -len(steps)]
        if points.dim() == 4 and points.stride(1) == 1:  # probably channels last
            result = points.new_zeros(before[0], *size, before[1]).permute(0, 3, 1, 2)
        else:
            result = points.new_zeros(*before, *size)
        result[_points(steps)] = points
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Sizes, Sizes], output: Tensor) -> None:
        _, ctx.steps, _ = inputs

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return _Thinned.apply(slope, ctx.steps), None, None


class _PlainSlope(torch.autograd.Function):
    """The identity, with a gradient that is channels first in memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope.contiguous()


def _with_plain_slope(norm: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if input.device.type != "cpu" or len(input) != 1:
        return norm(input, *args, **kwargs)
    result: Tensor = _PlainSlope.apply(norm(input.contiguous(), *args, **kwargs))
    return result


def _instead_of_norm(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: _with_plain_slope(norm, *args, **kwargs)


def _named(safe: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `safe` with its first argument called ``input``, as in PyTorch."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return safe(input, *args, **kwargs)

    return call


INSTEAD: dict[Callable[..., Any], Callable[..., Any]] = {
    F.conv1d: _named(convolve),
    F.conv2d: _named(convolve),
    F.conv_transpose1d: _named(convolve_transposed),
    F.conv_transpose2d: _named(convolve_transposed),
    F.instance_norm: _instead_of_norm(F.instance_norm),
    torch.instance_norm: _instead_of_norm(torch.instance_norm),
}


def each(size: Size, kernel: Sizes) -> Sizes:
    """Return one number for every dimension of a kernel."""
    if isinstance(size, int):
        return (size,) * len(kernel)
    return tuple(size) * len(kernel) if len(size) == 1 else tuple(size)


def _points(steps: Sizes) -> tuple[Any, ...]:
    return (..., *(slice(None, None, step) for step in steps))


def strided_points(kernel: Sizes, steps: Sizes, padding: Size | str) -> bool:
    """Return whether a convolution is 1×1 with a stride and without padding."""
    if any(size != 1 for size in kernel) or all(step == 1 for step in steps) or padding == "same":
        return False
    return padding == "valid" or not any(each(padding, kernel))  # type: ignore[arg-type]


def at_end(padding: Size | str, dilation: Size) -> tuple[int | str, int]:
    """Return the padding and dilation of the last dimension."""
    last = padding if isinstance(padding, int | str) else padding[-1]
    return last, dilation if isinstance(dilation, int) else dilation[-1]


def some_column_is_blind(width: int, kernel: int, padding: int | str, dilation: int) -> bool:
    """Return whether an output column may see no pixel: beyond the edges, or between those of a narrow image.

    >>> some_column_is_blind(1, kernel=1, padding=1, dilation=1), some_column_is_blind(8, 3, 1, 1)
    (True, False)
    """
    reach = dilation * (kernel - 1)
    around = {"valid": 0, "same": reach}.get(padding, 0) if isinstance(padding, str) else padding
    return around > reach or (around > 0 and width < dilation)


def _around(kernel: Sizes, padding: Size | str, dilation: Sizes) -> list[int]:
    """Return the padding in the form of `torch.nn.functional.pad`: the last dimension first."""
    if padding == "same":
        reach = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in reach]
    else:
        pairs = [(one, one) for one in each(padding, kernel)]  # type: ignore[arg-type]
    return [zeros for pair in reversed(pairs) for zeros in pair]
