"""Make models safe: find unsafe layers by type, and unsafe calls in other code by a run without values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from nestling.safe_kernels.functions import INSTEAD, SafeKernels, at_end, each, some_column_is_blind, strided_points
from nestling.torch_private import tree_map_only

_ConvNd = nn.modules.conv._ConvNd
_InstanceNorm = nn.modules.instancenorm._InstanceNorm
_KNOWN_CODE = ("torch.nn.", "nestling.")  # code that calls unsafe kernels only through layers that `guard` knows


def guard(model: nn.Module, *example: Any, **kwexample: Any) -> None:
    """Make a model avoid unsafe kernels, in place; its results stay the same.

    Layers that may be unsafe run inside `SafeKernels` from now on, by hooks that are copied with the model. With an
    example, code that is neither PyTorch's nor ours is run without values to find unsafe functional calls; if that
    fails, the whole model is guarded.

    Parameters
    ----------
    model
        The model to change.
    example, kwexample
        Inputs of the model.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1, stride=2))
    >>> guard(model)
    >>> [name for name, module in model.named_modules() if guarded(module)]
    ['1']
    """
    for module in model.modules():
        if _layer_is_unsafe(module):
            _hook(module)
    if (example or kwexample) and not all(
        type(module).__module__.startswith(_KNOWN_CODE) for module in model.modules()
    ):
        for module in _unsafe_callers(model, example, kwexample):
            _hook(module)


def guarded(module: nn.Module) -> bool:
    """Return whether `guard` has added hooks to a module."""
    return _enter in module._forward_pre_hooks.values()


def unguard(module: nn.Module) -> None:
    """Remove the hooks of `guard` from a single module that now calls safe functions itself."""
    for hooks, ours in ((module._forward_pre_hooks, _enter), (module._forward_hooks, _leave)):
        for key in [key for key, hook in hooks.items() if hook is ours]:
            del hooks[key]


def _layer_is_unsafe(module: nn.Module) -> bool:
    """Return whether a layer of PyTorch, or of a derived class, may call an unsafe kernel."""
    if isinstance(module, _InstanceNorm):
        return True
    if not isinstance(module, _ConvNd) or len(module.kernel_size) > 2:  # 3D convolutions are safe
        return False
    padding = module.padding if module.padding_mode == "zeros" else 0  # other paddings are applied before
    if strided_points(module.kernel_size, module.stride, padding):
        return True
    if module.transposed or module.bias is None:
        return False
    return some_column_is_blind(1, module.kernel_size[-1], *at_end(padding, module.dilation))


def _hook(module: nn.Module) -> None:
    if not guarded(module):
        module.register_forward_pre_hook(_enter, prepend=True)  # first, so that no other hook can fail before it
        module.register_forward_hook(_leave, always_call=True)


_SAFE = SafeKernels()  # it has no state, so one instance is enough


def _enter(_module: nn.Module, _inputs: Any) -> None:
    _SAFE.__enter__()


def _leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
    _SAFE.__exit__(None, None, None)


class _Search(TorchFunctionMode):
    """Records which module is active when an unsafe function is called, and calls the function."""

    def __init__(self) -> None:
        self.active: list[nn.Module] = []
        self.callers: dict[nn.Module, None] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in INSTEAD and self.active and _call_is_unsafe(func, args, kwargs or {}):
            self.callers[self.active[-1]] = None
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Track the active module."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(lambda inner, _: self.active.append(inner)))
            handles.append(module.register_forward_hook(lambda *_: self._pop(), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _pop(self) -> None:  # a hook that returned a module would replace the output
        self.active.pop()


def _call_is_unsafe(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call must be replaced."""
    if func in (F.instance_norm, torch.instance_norm):
        return True
    transposed = func in (F.conv_transpose1d, F.conv_transpose2d)
    last = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    names = ("input", "weight", "bias", "stride", "padding", *last)
    arguments = dict(zip(names, args, strict=False)) | kwargs
    kernel, padding = tuple(arguments["weight"].shape[2:]), arguments.get("padding", 0)
    if strided_points(kernel, each(arguments.get("stride", 1), kernel), padding):
        return True
    blind = some_column_is_blind(1, kernel[-1], *at_end(padding, arguments.get("dilation", 1)))
    return blind and not transposed and arguments.get("bias") is not None


@torch.no_grad()
def _unsafe_callers(model: nn.Module, example: tuple[Any, ...], kwexample: Mapping[str, Any]) -> list[nn.Module]:
    """Return the modules whose own code calls unsafe kernels, found by a forward pass without values."""
    search = _Search()
    training = [module for module in model.modules() if module.training]
    state = {name: tensor.to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (example, kwexample))
    try:
        with search.watching(model), search:
            functional_call(model.eval(), state, args, kwargs)
    except Exception:  # a forward may fail in any way on tensors without values
        return [model]
    finally:
        for module in training:
            module.training = True
    return list(search.callers)
