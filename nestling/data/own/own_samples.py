"""`OwnSamples`: samples of the user's own in memory, and what must be true of them before a model learns from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nestling.errors import DataError
from nestling.model_inputs import Inputs, chosen, count, mapped, shapes, tensors_of

IGNORED = -100  # the target of pixels and tokens that do not count, as in PyTorch


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """Samples in memory.

    Attributes
    ----------
    inputs
        Model inputs (N, …): a tensor, a tuple of tensors or a dictionary of tensors. Those of type uint8 are pixels,
        which a model gets as numbers from 0 to 1.
    outputs
        Targets (N, …), int64 or float32; of shape (N, 0) if there are none.
    label
        The key of the targets, where the samples came as a dictionary; else empty.

    Examples
    --------
    >>> samples = OwnSamples({"x": torch.zeros(3, 2)}, torch.tensor([0, 2, 2]))
    >>> len(samples), samples.held()
    (3, tensor([0, 2]))
    """

    inputs: Inputs
    outputs: Tensor
    label: str = ""
    augmented: bool = False

    @property
    def values(self) -> int:
        """The number of values in all inputs."""
        return sum(tensor.numel() for tensor in tensors_of(self.inputs))

    @property
    def has_targets(self) -> bool:
        """Whether there are targets."""
        return self.outputs.dim() != 2 or self.outputs.shape[1] > 0

    def __len__(self) -> int:
        return len(self.outputs)

    def some(self, indices: Tensor) -> OwnSamples:
        """Return the samples with these indices."""
        return replace(self, inputs=chosen(self.inputs, indices), outputs=self.outputs[indices])

    def batch(self, indices: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of the samples with these indices."""
        return chosen(self.inputs, indices), self.outputs[indices]

    def transform(self, inputs: Inputs, random: torch.Generator | None) -> Inputs:
        """Return the inputs as they are, and pixels as numbers from 0 to 1."""
        del random
        return mapped(lambda tensor: tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor, inputs)

    def targets(self) -> Tensor:
        """Return the targets of all samples."""
        return self.outputs

    def held(self) -> Tensor:
        """Return the classes that occur, sorted; without targets, the tokens; empty if targets are numbers."""
        values = self.outputs if self.has_targets else tensors_of(self.inputs)[0]
        if values.is_floating_point():
            return torch.empty(0, dtype=torch.long)
        classes: Tensor = values.unique()
        return classes[classes >= 0]


def check_values(samples: OwnSamples, what: str) -> None:
    """Raise `DataError`, which calls the samples `what`, where their numbers or values cannot be right."""
    sizes = {len(tensor) for tensor in (*tensors_of(samples.inputs), samples.outputs)}
    if len(sizes) > 1:
        raise DataError(
            f"{what}: there are {count(samples.inputs)} inputs, but {len(samples)} targets"
            if len(tensors_of(samples.inputs)) == 1
            else f"{what}: inputs and targets are of different numbers of samples: {sorted(sizes)}"
        )
    for part, tensors in (("inputs", tensors_of(samples.inputs)), ("targets", [samples.outputs])):
        for tensor in tensors:
            # a sum is finite only if every summand is, and it needs no memory
            if tensor.is_floating_point() and not bool(tensor.sum(dtype=torch.float64).isfinite()):
                bad = int((~tensor.flatten(1).isfinite().all(1) if tensor.dim() > 1 else ~tensor.isfinite()).sum())
                raise DataError(
                    f"{what}: the {part} of {bad} samples hold NaN or infinite values: repair or remove them"
                )


def check_form(samples: OwnSamples, what: str, first: OwnSamples, of: str) -> None:
    """Raise `DataError` unless samples have the form of others, `first`, which are called `of`."""
    for part, own, other in (
        ("inputs", form_of(samples.inputs), form_of(first.inputs)),
        ("targets", form_of(samples.outputs), form_of(first.outputs)),
    ):
        if own != other:
            raise DataError(f"{what}: one sample's {part} are {own}, but those of {of} are {other}: make them alike")


def check_targets(samples: OwnSamples, what: str, kind: str, classes: int) -> None:
    """Raise `DataError` unless targets are what a task needs.

    Parameters
    ----------
    samples, what
        The samples, and what errors call them.
    kind
        ``"classes"``, ``"numbers"`` or ``"any"``.
    classes
        The number of classes; 0 if it is not known.

    Examples
    --------
    >>> check_targets(OwnSamples(torch.zeros(2, 1), torch.tensor([0, 3])), "client 4", "classes", 3)
    Traceback (most recent call last):
    nestling.errors.DataError: client 4: the label 3 is not one of the 3 classes from 0
    """
    targets = samples.outputs
    if kind == "any" or not len(samples):
        return
    if not samples.has_targets:
        raise DataError(
            f"{what}: there are no targets: give pairs of inputs and targets, or a dictionary with 'labels'"
        )
    if kind == "numbers":
        if not targets.is_floating_point():
            raise DataError(f"{what}: the targets of a regression are floating-point numbers, not {targets.dtype}")
        return
    if targets.is_floating_point():
        raise DataError(f"{what}: labels are whole numbers from 0, not {targets.dtype}: convert them with .long()")
    known = targets[targets != IGNORED] if targets.dim() > 1 else targets
    low, high = (int(end) for end in known.aminmax()) if known.numel() else (0, 0)
    if low < 0 or (classes and high >= classes):
        count_of = f"{classes} classes" if classes else "classes"
        raise DataError(f"{what}: the label {low if low < 0 else high} is not one of the {count_of} from 0")


def form_of(inputs: Inputs) -> str:
    """Return the types and shapes of samples.

    >>> form_of({"x": torch.zeros(3, 2)})
    "'x': float32 of shape (2,)"
    """
    names = list(inputs) if isinstance(inputs, dict) else []
    parts = [
        f"{tensor.dtype} of shape {shape}".removeprefix("torch.")
        for tensor, shape in zip(tensors_of(inputs), shapes(inputs), strict=True)
    ]
    named = [f"{name!r}: {part}" for name, part in zip(names, parts, strict=True)] if names else parts
    return ", ".join(named)
