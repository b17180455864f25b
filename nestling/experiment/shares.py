"""The data of an experiment: opened, dealt out to clients, and what is kept back of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nestling.data import TEXTS, Dataset, Partition, Text, load, partition
from nestling.data.text.corpus import gathered
from nestling.errors import ConfigError
from nestling.experiment.texts import deal, held_out, open_text
from nestling.seeds import numpy_stream
from nestling.settings import Experiment


def opened(experiment: Experiment, own: Dataset | Text | None = None) -> Dataset | Text:
    """Return the data that an experiment names, or the caller's own, as its settings want it."""
    data = experiment.data
    dataset = own or (open_text(experiment) if data.name in TEXTS else load(data.name, data.dir or None))
    if isinstance(dataset, Text):
        if data.resize:
            raise ConfigError(f"data.resize is for images, and {dataset.name} is a text")
        return dataset
    if own is None and data.augment != "default":
        dataset = replace(dataset, augment=data.augment)
    return replace(dataset, resize=data.resize) if data.resize else dataset


def dealt(
    experiment: Experiment, dataset: Dataset | Text, own: Partition | None = None
) -> tuple[Partition, Tensor, Tensor]:
    """Return the shares of clients, and the samples kept back: to choose the best round by, and for the server."""
    if not len(gathered(dataset.test, 1) if isinstance(dataset, Text) else dataset.test_targets):
        raise ConfigError(f"{dataset.name} holds nothing to test on, and every experiment tests its models")
    if isinstance(dataset, Text):
        validation = torch.arange(len(held_out(experiment, dataset, "validation")))
        return own or deal(experiment, dataset), validation, torch.empty(0)
    kept, validation, unlabelled = _split(experiment, dataset)
    if own is not None:
        _check_own(own, dataset)
    shares = own or _partition(experiment, dataset, kept)
    empty = next((client for client, samples in enumerate(shares.train) if not len(samples)), None)
    if empty is not None and experiment.data.minimum:
        raise ConfigError(
            f"client {empty} has no data: use fewer clients, or data.minimum=0, which lets clients be empty"
        )
    if not any(map(len, shares.train)):
        raise ConfigError(f"no client has any of the training samples of {dataset.name}")
    return shares, validation, unlabelled


def _check_own(shares: Partition, dataset: Dataset) -> None:
    """Raise where a partition of the caller's own does not fit the data."""
    if not len(shares.train) == len(shares.test) == len(shares.labels):
        raise ConfigError(
            f"the partition has {len(shares.train)} clients in train, {len(shares.test)} in test and "
            f"{len(shares.labels)} in labels: it must have as many in each"
        )
    parts = (
        ("training samples", shares.train, len(dataset.targets)),
        ("test samples", shares.test, len(dataset.test_targets)),
        ("classes", shares.labels, dataset.classes),
    )
    for what, held, count in parts:
        for client, numbers in enumerate(held):
            if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
                raise ConfigError(f"the {what} of client {client} in the partition must be a tensor (N,) of int64")
            if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < count):
                raise ConfigError(
                    f"client {client} of the partition has {what} from {int(numbers.min())} to {int(numbers.max())}, "
                    f"but those of {dataset.name} are 0 to {count - 1}"
                )


def _split(experiment: Experiment, dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the training samples in use and of those kept back for validation, and unlabelled samples."""
    order = numpy_stream(experiment.seed, "split").permutation(len(dataset.inputs))
    if experiment.data.samples > len(order):
        raise ConfigError(f"data.samples is {experiment.data.samples}, but {dataset.name} has {len(order)}")
    order = order[: experiment.data.samples or None]
    first = int(len(order) * experiment.data.validation)
    second = first + int(len(order) * experiment.data.unlabelled)
    validation, given, kept = (
        torch.from_numpy(part).sort().values for part in (order[:first], order[first:second], order[second:])
    )
    return kept, validation, dataset.test_inputs if experiment.data.unlabelled_test else dataset.inputs[given]


def _partition(experiment: Experiment, dataset: Dataset, kept: Tensor) -> Partition:
    part = dataset
    if len(kept) < len(dataset.inputs):
        users = None if dataset.users is None else dataset.users[kept]
        part = replace(dataset, inputs=dataset.inputs[kept], targets=dataset.targets[kept], users=users)
    shares = partition(
        part,
        experiment.fleet.clients,
        experiment.data.partition,
        classes_per_client=experiment.data.classes_per_client or None,
        alpha=experiment.data.alpha if experiment.data.partition == "dirichlet" else None,
        minimum=experiment.data.minimum,
        seed=experiment.seed,
    )
    return replace(shares, train=tuple(kept[samples] for samples in shares.train))
