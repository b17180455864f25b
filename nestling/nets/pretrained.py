"""Load initial weights from a file in our own layout, or in that of torchvision or timm (`nestling.nets.layouts`).

A tensor is loaded if its name and shape agree, and otherwise stays as initialised. In addition

- learned step sizes, which those files do not have, keep their initial value, 1;
- a head for other classes is skipped, and so are the bias and the statistics of any weight that is skipped;
- a stem with another kernel is skipped together with its norm. Our ResNet18/34 have the papers' 3×3 stem for CIFAR, the
  published files one of 7×7 and stride 2: build the model with ``stem_kernel=7, stem_stride=2`` to load it, too;
- the affine parameters of a batch norm are not loaded into another norm;
- ViT's positions for another image size are interpolated on their grid (bicubic, antialiased).

If the model has more blocks than the file, those in the file are loaded: :meth:`Match.summary` says so. Nothing but
tensors and plain values is ever unpickled.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.errors import ModelError, first_line, nearest
from nestling.nets.layouts import LAYOUTS, Offer
from nestling.nets.vit import VisionTransformer

PathLike = str | os.PathLike[str]
_OURS = "Nestling's own"
_PICKLED = (".pt", ".pth", ".bin")
# prefixes of DataParallel, Lightning and torch.compile
_WRAPPERS = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+")


@dataclass(frozen=True)
class Match:
    """The result of :func:`start_from`.

    Attributes
    ----------
    taken
        Our names that were filled.
    skipped
        Our names that were left as they were → the reason.
    unused
        Names in the file that were not used.
    """

    taken: tuple[str, ...]
    skipped: dict[str, str]
    unused: tuple[str, ...]

    def summary(self) -> str:
        """Return a summary in a few lines.

        >>> missing = dict.fromkeys(["head.weight", "head.bias"], "not in the file")
        >>> print(Match(("stem.weight",), missing, ("fc.bias",)).summary())
        1 of 3 tensors filled
        left as it was, not in the file: head.weight, head.bias
        unused in the file: fc.bias
        """
        lines = [f"{len(self.taken)} of {len(self.taken) + len(self.skipped)} tensors filled"]
        names_by_reason: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            names_by_reason.setdefault(reason, []).append(name)
        shown = list(names_by_reason.items())[:6]
        lines += [f"left as it was, {reason}: {_first_three(names)}" for reason, names in shown]
        if more := len(self.skipped) - sum(len(names) for _, names in shown):
            lines.append(f"left as it was, for other reasons: {more} more")
        if self.unused:
            lines.append(f"unused in the file: {_first_three(self.unused)}")
        return "\n".join(lines)


def read_weights(path: PathLike) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of a PyTorch state-dict file (``.pt``, ``.pth``, ``.bin``).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(nn.Linear(2, 3).state_dict(), f"{folder}/linear.pt")
    ...     list(read_weights(f"{folder}/linear.pt"))
    ['weight', 'bias']
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".safetensors", *_PICKLED):
        raise ModelError(f"weights are read from .safetensors, {', '.join(_PICKLED)} files, not {str(path)!r}")
    try:
        path.open("rb").close()
    except OSError as problem:
        raise ModelError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    if kind == ".safetensors":
        try:
            weights: object = safetensors.torch.load_file(path)
        except Exception as problem:  # the decoder raises errors of several types
            raise ModelError(f"{str(path)!r} is no whole safetensors file: {first_line(problem)}") from None
    else:
        weights = _load_pytorch(path)
    return _check_tensors(weights, repr(str(path)))


def start_from(model: nn.Module, weights: Mapping[str, Tensor] | PathLike) -> Match:
    """Copy the tensors of ``weights`` that fit into ``model``; they are a state dict, or a file for `read_weights`.

    Tensors are cast to the model's dtype and moved to its device. Names may have the prefixes ``module.``, ``model.``
    and ``_orig_mod.`` of wrappers.

    Raises
    ------
    ModelError
        If less than half of the model's parameters, apart from its head, would be filled, or a matching tensor holds
        values that are not finite. The model is then unchanged.

    Examples
    --------
    >>> from nestling.nets import build
    >>> net = build("mlp", classes=3)
    >>> match = start_from(net, build("mlp").state_dict())
    >>> match.skipped["head.weight"]
    'shape (10, 200) of head.weight is not (3, 200)'
    """
    if isinstance(weights, Mapping):
        source, held = "the state dict", _check_tensors(weights, "the state dict")
    else:
        source, held = repr(os.fspath(weights)), read_weights(weights)
    wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    if any(target.is_meta for target in wanted.values()):
        raise ModelError("a model on the meta device has no room for weights: build it on a device that holds values")
    full_names = _without_prefixes(held, wanted, source)
    label, offers = _read_layout(model, wanted, {short: held[name] for short, name in full_names.items()}, source)
    square = isinstance(model, VisionTransformer)
    fits = {name: _fit(name, wanted, offers, square) for name in wanted}
    skipped = {name: reason for name, reason in fits.items() if isinstance(reason, str)}
    for name in wanted.keys() - skipped.keys():
        if (leader := _leader(name)) in skipped:
            fits[name] = f"belongs to {leader}, which was left"
    taken = {name: value for name, value in fits.items() if isinstance(value, Tensor)}
    skipped = {name: reason for name, reason in fits.items() if isinstance(reason, str)}
    _check_filled(model, taken, skipped, f"{source}, read as {label},")
    for name, value in taken.items():
        if not torch.isfinite(value).all():
            raise ModelError(f"{offers[name].source!r} in {source} holds values that are not finite")
    with torch.no_grad():
        for name, value in taken.items():
            wanted[name].copy_(value)
    used = {full_names[offers[name].source] for name in taken}
    return Match(tuple(taken), skipped, tuple(name for name in held if name not in used))


def _load_pytorch(path: Path) -> object:
    """Read a PyTorch file with the unpickler that accepts only tensors and plain values."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises errors of many types for damaged files
        if match := re.search(r"GLOBAL (\S+)", str(problem)):
            raise ModelError(
                f"{str(path)!r} holds more than tensors ({match[1]}), which is never run: save model.state_dict() alone"
            ) from None
        raise ModelError(f"{str(path)!r} is damaged, or no PyTorch file that holds a state dict") from None


def _check_tensors(weights: object, source: str) -> dict[str, Tensor]:
    if not isinstance(weights, Mapping):
        raise ModelError(f"{source} holds no dictionary of tensors but {type(weights).__name__}")
    if not weights:
        raise ModelError(f"{source} holds no tensors")
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ModelError(
                f"{source} holds more than tensors: {name!r} is of type {kind}; save model.state_dict() alone"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise ModelError(f"{name!r} in {source} must be a dense tensor that holds values")
    return {name: value.detach() for name, value in weights.items()}


def _without_prefixes(names: Iterable[str], wanted: Container[str], source: str) -> dict[str, str]:
    """Map names without the prefixes of wrappers (unless the model itself has them) to the full names."""
    full_names: dict[str, str] = {}
    for name in names:
        short = name if name in wanted else _WRAPPERS.sub("", name)
        if full_names.setdefault(short, name) != name:
            raise ModelError(f"{source} holds both {full_names[short]!r} and {name!r}: leave one of the two out")
    return full_names


def _read_layout(
    model: nn.Module, wanted: Mapping[str, Tensor], held: Mapping[str, Tensor], source: str
) -> tuple[str, dict[str, Offer]]:
    """Return the label of the layout that matches most names, and the tensors under our names.

    A layout belongs to a class: a pre-activation ResNet has some names and shapes of a ResNet, but other meanings. For
    the same reason our own layout is only considered if the model's first tensor is present.
    """
    readings = {layout.label: layout.translate(held) for layout in LAYOUTS if isinstance(model, layout.kind)}
    if next(iter(wanted), None) in held:
        readings = {_OURS: {name: Offer(name, name, tensor) for name, tensor in held.items()}} | readings
    label, offers = max(readings.items(), key=lambda one: len(one[1].keys() & wanted.keys()), default=("", {}))
    if offers.keys() & wanted.keys():
        return label, offers
    kind = type(model).__name__
    likely = max(LAYOUTS, key=lambda layout: len(layout.rename(held)))
    if 2 * len(likely.rename(held)) > len(held):
        raise ModelError(f"{source} looks like a {likely.label}, which a {kind} cannot start from")
    first = next(iter(held))
    known = " or ".join(["its own names", *(f"those of a {label}" for label in readings)])
    raise ModelError(
        f"{source} has no names that a {kind} can start from ({known}): its first is {first!r}{nearest(first, wanted)}"
    )


def _fit(name: str, wanted: Mapping[str, Tensor], offers: Mapping[str, Offer], square: bool) -> Tensor | str:
    """Return the tensor to copy to ``name``, or the reason for none; ``square`` if the model's images are square."""
    if name not in offers:
        return "not in the file"
    target, (_, description, tensor) = wanted[name], offers[name]
    statistics = _sibling(name, "running_mean")
    if statistics in offers and statistics not in wanted:
        return f"{description} is of a batch norm, which the model does not have here"
    if tensor.is_floating_point() != target.is_floating_point():
        return f"{description} is {tensor.dtype}, which is no {target.dtype}"
    if square and name in ("token.weight", "position.weight") and tensor.dim() == 3 and len(tensor) == 1:
        tensor = tensor[0]
    if square and name == "position.weight" and tensor.shape[1:] == target.shape[1:]:
        tensor = _resize_positions(tensor, len(target))
    if tensor.shape != target.shape:
        return f"shape {tuple(offers[name].tensor.shape)} of {description} is not {tuple(target.shape)}"
    return tensor.to(target)


def _resize_positions(position: Tensor, rows: int) -> Tensor:
    """Interpolate ``(1 + side², width)`` positions to ``rows``, except for the first; return others unchanged."""
    old, new = (math.isqrt(max(count - 1, 0)) for count in (len(position), rows))
    if len(position) == rows or old == 0 or (old**2 + 1, new**2 + 1) != (len(position), rows):
        return position
    position = position.to(torch.promote_types(position.dtype, torch.float32))  # half precision is too inexact
    grid = position[1:].T.reshape(1, -1, old, old)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True)
    return torch.cat([position[:1], grid.flatten(2)[0].T])


def _sibling(name: str, part: str) -> str:
    """Return the name of another tensor of the same module."""
    return "".join(name.rpartition(".")[:2]) + part


def _leader(name: str) -> str:
    """Return the tensor that this one depends on."""
    return "stem.conv.weight" if name.startswith("stem.norm.") else _sibling(name, "weight")


def _check_filled(model: nn.Module, taken: Mapping[str, Tensor], skipped: Mapping[str, str], source: str) -> None:
    """Raise `ModelError` if less than half of the parameters, apart from the head, would be filled."""
    counts = {name: value.numel() for name, value in model.named_parameters() if not name.startswith("head.")}
    filled = sum(count for name, count in counts.items() if name in taken)
    if taken and 2 * filled >= sum(counts.values()):
        return
    missing = [
        f"{name} ({skipped[name]})" for name in skipped if not name.startswith("head.") and not name.endswith(".step")
    ]
    raise ModelError(
        f"{source} fills only {filled:,} of the {sum(counts.values()):,} parameters of this {type(model).__name__}, "
        f"its head aside: {_first_three(missing or skipped)}"
    )


def _first_three(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
