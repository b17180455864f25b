"""The data of an experiment: opened by name or handed in, and divided among clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from nestling.data import TEXTS, Dataset, Partition, Text, TextShares, load, load_text, partition, share
from nestling.data.array_clients import ArrayClients, ArraySamples
from nestling.data.federated import ClientData, FederatedData
from nestling.data.text.corpus import fitting, gathered
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
        The data before that.
    data
        The samples of all clients, and those that models are tested on.
    task
        What is learned from them, unless the caller hands in a task.
    partition
        Which client holds which samples; None where the source says so itself.
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
    source = own or (_open_text(experiment) if settings.name in TEXTS else load(settings.name, settings.dir or None))
    if isinstance(source, Text):
        return _divided_text(experiment, source, shares)
    if isinstance(source, Dataset):
        return _divided_arrays(experiment, _as_set(experiment, source, named=own is None), shares)
    if shares is not None:
        raise ConfigError(f"{source.name} says itself which client holds what: leave out partition=…")
    accelerate = experiment.accelerate != "off"
    task = Classification(source.classes, accelerate) if source.classes else Regression()
    return DividedData(source, source, task)


# ---- texts


def _open_text(experiment: Experiment) -> Text:
    data = experiment.data
    task = None if data.task == "default" else data.task
    return load_text(data.name, data.dir or None, task=task, vocabulary=data.vocabulary, length=data.length)


def _divided_text(experiment: Experiment, text: Text, own: Partition | None) -> DividedData:
    settings, words = experiment.data, text.vocabulary
    if settings.resize:
        raise ConfigError(f"data.resize is for images, and {text.name} is a text")
    if not len(gathered(text.test, 1)):
        raise _nothing_to_test_on(text)
    shares = own or _deal(experiment, text)
    assert isinstance(shares, TextShares)
    data = TextClients(text, shares, partial(held_out, experiment, text))
    len(data.validation)  # raises now, and not after hours, where there is nothing to validate on
    task = LanguageTask(
        text.task,
        text.mask,
        text.padding,
        words.unknown,
        words.end,
        positions=settings.positions,
        classes=text.classes,
        accelerate=experiment.accelerate != "off",
    )
    return DividedData(text, data, task, shares)


def _deal(experiment: Experiment, text: Text) -> TextShares:
    data = experiment.data
    for name, usual in (("samples", 0), ("unlabelled", 0), ("unlabelled_test", False)):
        if getattr(data, name) != usual:
            raise ConfigError(f"data.{name} is for images; of a text, data.most_per_client limits what is used")
    clients, most = experiment.fleet.clients, data.most_per_client
    return share(text, clients, data.partition, minimum=data.minimum, most=most, seed=experiment.seed)


def held_out(experiment: Experiment, text: Text, part: str) -> Tensor:
    """Return the sequences to test on, or to choose the best round by: as many as evaluate.samples says."""
    if part == "validation" and not experiment.data.validation:
        return torch.empty(0, text.width, dtype=torch.long)
    parts = text.test if part == "test" else text.validation
    checked = (fitting(several, text.form, f"the {part} part of {text.name}") for several in parts)
    sequences = gathered(checked, experiment.evaluate.samples)
    if not len(sequences):
        raise ConfigError(f"{text.name} holds nothing for {part}: leave data.validation at 0")
    return sequences


# ---- arrays


def _as_set(experiment: Experiment, dataset: Dataset, *, named: bool) -> Dataset:
    """Return a data set with the augmentation and the image size of the settings."""
    settings = experiment.data
    if named and settings.augment != "default":
        dataset = replace(dataset, augment=settings.augment)
    return replace(dataset, resize=settings.resize) if settings.resize else dataset


def _divided_arrays(experiment: Experiment, dataset: Dataset, own: Partition | None) -> DividedData:
    if not len(dataset.test_targets):
        raise _nothing_to_test_on(dataset)
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
    data = ArrayClients(dataset, shares, validation, experiment.evaluate.samples)
    unknown = torch.full((len(unlabelled),), -1)
    public = ArraySamples(dataset, unlabelled, unknown, torch.arange(len(unlabelled))) if len(unlabelled) else None
    task = Classification(dataset.classes, experiment.accelerate != "off")
    return DividedData(dataset, data, task, shares, public)


def _nothing_to_test_on(source: Dataset | Text) -> ConfigError:
    return ConfigError(f"{source.name} holds nothing to test on, and every experiment tests its models")


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
