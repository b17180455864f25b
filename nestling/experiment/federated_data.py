"""The data of an experiment: opened by name or handed in, and divided among clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any

import torch
from torch import Tensor

from nestling.data import TEXTS, Dataset, Partition, Text, TextShares, load, load_text, partition, share
from nestling.data.array_clients import ArrayClients, ArraySamples
from nestling.data.federated import ClientData, FederatedData
from nestling.data.text.corpus import check_sequences, first_sequences
from nestling.data.text.text_clients import TextClients
from nestling.errors import ConfigError
from nestling.seeds import numpy_stream
from nestling.settings import Experiment
from nestling.tasks import Classification, LanguageTask, Regression, Task

Source = Dataset | Text | FederatedData


@dataclass(frozen=True, eq=False)
class DividedData:
    """Data that is divided among clients.

    Attributes
    ----------
    source
        The data before it was divided.
    data
        The samples of all clients, and those that models are tested on.
    task
        What is learned from them, unless the caller hands in a task.
    partition
        Which client holds which samples; None if the source is divided itself.
    public
        The samples that the server may use without their labels; None for none.
    """

    source: Source
    data: FederatedData
    task: Task
    partition: Partition | None = None
    public: ClientData | None = None


def divided_data(experiment: Experiment, own: Source | None = None, shares: Partition | None = None) -> DividedData:
    """Return the data that an experiment names, or the caller's own, divided among clients."""
    settings = experiment.data
    source: Source
    if own is not None:
        source = own
    elif settings.name in TEXTS:
        task = None if settings.task == "default" else settings.task
        source = load_text(
            settings.name,
            settings.dir or None,
            task=task,
            vocabulary=settings.vocabulary_size,
            length=settings.sequence_length,
        )
    else:
        source = load(settings.name, settings.dir or None)
        if settings.augment != "default":
            source = replace(source, augment=settings.augment)
    return _divided(source, experiment, shares)


@singledispatch
def _divided(source: Any, experiment: Experiment, shares: Partition | None) -> DividedData:
    """Return `FederatedData` as it is; raise if it is empty, or if a setting has no effect on it."""
    if shares is not None:
        raise ConfigError(f"{source.name} says itself which client holds what: leave out partition=…")
    if not len(source.test):
        raise _nothing_to_test_on(source)
    unused = ("partition", "augment", "resize", "max_samples", "validation", "public_share", "public_from_test", "task")
    for name in _changed(experiment, unused):
        raise ConfigError(f"data.{name} has no effect on {source.name}, which is read client by client: leave it out")
    if experiment.evaluate.samples:
        raise ConfigError(f"evaluate.samples has no effect on {source.name}: hand in as many test samples as you want")
    accelerate = experiment.accelerate != "off"
    task = Classification(source.classes, accelerate) if source.classes else Regression()
    return DividedData(source, source, task)


def _changed(experiment: Experiment, names: Iterable[str]) -> list[str]:
    """Return those settings of the data that differ from their defaults."""
    default = Experiment().data
    return [name for name in names if getattr(experiment.data, name) != getattr(default, name)]


# ---- texts


@_divided.register
def _divided_text(text: Text, experiment: Experiment, own: Partition | None) -> DividedData:
    settings, words = experiment.data, text.vocabulary
    if settings.resize:
        raise ConfigError(f"data.resize is for images, and {text.name} is a text")
    if not len(first_sequences(text.test, 1)):
        raise _nothing_to_test_on(text)
    shares = _text_shares(experiment, text) if own is None else own
    assert isinstance(shares, TextShares)
    data = TextClients(text, shares, partial(_held_out, experiment, text))
    len(data.validation)  # raises now, not after hours, if there is nothing to validate on
    task = LanguageTask(
        text.task,
        text.mask,
        text.padding,
        words.unknown,
        words.end,
        positions=settings.loss_positions,
        classes=text.classes,
        accelerate=experiment.accelerate != "off",
    )
    return DividedData(text, data, task, shares)


def _text_shares(experiment: Experiment, text: Text) -> TextShares:
    data = experiment.data
    for name in _changed(experiment, ("max_samples", "public_share", "public_from_test")):
        raise ConfigError(f"data.{name} is for images; of a text, data.max_sequences limits what is used")
    clients, most = experiment.fleet.clients, data.max_sequences
    return share(text, clients, data.partition, minimum=data.min_samples, most=most, seed=experiment.seed)


def _held_out(experiment: Experiment, text: Text, part: str) -> Tensor:
    """Return the sequences of the test or the validation part, at most evaluate.samples."""
    if part == "validation" and not experiment.data.validation:
        return torch.empty(0, text.width, dtype=torch.long)
    parts = text.test if part == "test" else text.validation
    checked = (check_sequences(several, text.form, f"the {part} part of {text.name}") for several in parts)
    sequences = first_sequences(checked, experiment.evaluate.samples)
    if not len(sequences):
        raise ConfigError(f"{text.name} holds nothing for {part}: leave data.validation at 0")
    return sequences


# ---- arrays


@_divided.register
def _divided_arrays(dataset: Dataset, experiment: Experiment, own: Partition | None) -> DividedData:
    if experiment.data.resize:
        dataset = replace(dataset, resize=experiment.data.resize)
    if not len(dataset.test_targets):
        raise _nothing_to_test_on(dataset)
    kept, validation, unlabelled = _split(experiment, dataset)
    if own is not None:
        _check_own(own, dataset)
    shares = _partition(experiment, dataset, kept) if own is None else own
    empty = next((client for client, samples in enumerate(shares.train) if not len(samples)), None)
    if empty is not None and experiment.data.min_samples:
        raise ConfigError(
            f"client {empty} has no data: use fewer clients, or data.min_samples=0, which lets clients be empty"
        )
    if not any(map(len, shares.train)):
        raise ConfigError(f"no client has any of the training samples of {dataset.name}")
    data = ArrayClients(dataset, shares, validation, experiment.evaluate.samples)
    unknown = torch.full((len(unlabelled),), -1)
    public = ArraySamples(dataset, unlabelled, unknown, torch.arange(len(unlabelled))) if len(unlabelled) else None
    task = Classification(dataset.classes, experiment.accelerate != "off")
    return DividedData(dataset, data, task, shares, public)


def _nothing_to_test_on(source: Source) -> ConfigError:
    return ConfigError(f"{source.name} holds nothing to test on, and every experiment tests its models")


def _check_own(shares: Partition, dataset: Dataset) -> None:
    """Raise if the caller's own partition does not fit the data."""
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
    for what, clients, count in parts:
        for client, numbers in enumerate(clients):
            if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
                raise ConfigError(f"the {what} of client {client} in the partition must be a tensor (N,) of int64")
            low, high = (int(end) for end in numbers.aminmax()) if len(numbers) else (0, 0)
            if len(numbers) and (low < 0 or high >= count):
                raise ConfigError(
                    f"client {client} of the partition has {what} from {low} to {high}, "
                    f"but those of {dataset.name} are 0 to {count - 1}"
                )


def _split(experiment: Experiment, dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of the samples for training and for validation, and the unlabelled samples themselves."""
    order = numpy_stream(experiment.seed, "split").permutation(len(dataset.inputs))
    if experiment.data.max_samples > len(order):
        raise ConfigError(f"data.max_samples is {experiment.data.max_samples}, but {dataset.name} has {len(order)}")
    order = order[: experiment.data.max_samples or None]
    first = int(len(order) * experiment.data.validation)
    second = first + int(len(order) * experiment.data.public_share)
    validation, unlabelled, kept = (
        torch.from_numpy(part).sort().values for part in (order[:first], order[first:second], order[second:])
    )
    return kept, validation, dataset.test_inputs if experiment.data.public_from_test else dataset.inputs[unlabelled]


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
        minimum=experiment.data.min_samples,
        seed=experiment.seed,
    )
    return replace(shares, train=tuple(kept[samples] for samples in shares.train))
