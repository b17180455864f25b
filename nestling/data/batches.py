"""Batches of a client's samples, and how many there are in a round: so many epochs, steps, or a part of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nestling.settings import LocalTraining

_ROUNDING = 1e-9  # 0.1 of 30 batches are 3, not the 3.0000000000000004 of floating-point numbers


def batches(samples: Tensor, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Yield the indices of samples in batches, shuffled if a generator is given.

    A last batch of a single sample joins the one before it: a norm over one value has no variance.

    >>> [batch.tolist() for batch in batches(torch.arange(7), 3)]
    [[0, 1, 2], [3, 4, 5, 6]]
    """
    if generator is not None:
        samples = samples[torch.randperm(len(samples), generator=generator, device=generator.device)]
    cuts = list(range(size, len(samples), size))
    if cuts and len(samples) - cuts[-1] == 1:
        cuts.pop()
    yield from samples.tensor_split(cuts) if len(samples) else ()


def local_batches(samples: Tensor, training: LocalTraining, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of the batches of a round; samples are shuffled again for every epoch.

    >>> training = LocalTraining(epochs=0, steps=3, batch_size=2)
    >>> [len(batch) for batch in local_batches(torch.arange(4), training, torch.Generator())]
    [2, 2, 2]
    """
    left = local_steps(training, len(samples))
    while left:
        for batch in batches(samples, training.batch_size, generator):
            yield batch
            left -= 1
            if not left:
                return


def local_steps(training: LocalTraining, samples: int) -> int:
    """Return the steps of a client with so many samples in a round; a part of an epoch is rounded up.

    >>> [local_steps(LocalTraining(epochs=0, steps=steps), samples=100) for steps in (25, 0.25)]
    [25, 3]
    >>> local_steps(LocalTraining(epochs=2), samples=100)
    20
    """
    epoch = _batches_of_an_epoch(training, samples)
    if epoch and isinstance(training.steps, int) and training.steps:
        return training.steps
    return math.ceil(training.steps * epoch - _ROUNDING) if training.steps else training.epochs * epoch


def local_samples(training: LocalTraining, samples: int) -> int:
    """Return how many samples these steps read, each as often as it is read.

    >>> local_samples(LocalTraining(epochs=0, steps=3, batch_size=10), samples=25)
    25
    >>> local_samples(LocalTraining(epochs=0, steps=4, batch_size=10), samples=25)
    35
    """
    epoch = _batches_of_an_epoch(training, samples)
    if not epoch:
        return 0
    whole, begun = divmod(local_steps(training, samples), epoch)
    return whole * samples + begun * training.batch_size  # only the last batch of an epoch has another size


def _batches_of_an_epoch(training: LocalTraining, samples: int) -> int:
    alone = samples > training.batch_size and (samples - 1) % training.batch_size == 0  # see `batches`
    return math.ceil(samples / training.batch_size) - alone
