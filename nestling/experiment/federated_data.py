"""The data of an experiment: opened by name or handed in, and divided among clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any, TypeGuard

import torch
from torch import Tensor

from nestling.data import TEXTS, Dataset, Partition, Text, TextShares, load, load_text, partition, share
from nestling.data.array_clients import ArrayClients, ArraySamples
from nestling.data.federated import ClientData, FederatedData
from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.data.own.sources import own_data
from nestling.data.text.corpus import check_sequences, first_sequences
from nestling.data.text.text_clients import TextClients
from nestling.errors import ConfigError, NestlingError, first_line, nearest
from nestling.experiment.task_choice import task_by_targets, with_task
from nestling.imported import imported
from nestling.seeds import numpy_stream
from nestling.settings import Experiment
from nestling.tasks import Classification, LanguageTask, OwnTask, Regression, Task

_DATA_KEYS = ("clients", "test", "validation", "public", "num_clients", "label", "users", "name")
_TASK_KEYS = ("task", "loss", "metrics", "lower_is_better", "classes")
Source = Dataset | Text | FederatedData | OwnArrays
_FACTORY = "the arguments of nestling.federate that are data, as a dictionary: clients, test and, say, task"


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


def divided_data(
    experiment: Experiment, own: Source | None = None, shares: Partition | None = None, task: Task | None = None
) -> DividedData:
    """Return the data that an experiment names, or the caller's own, divided among clients; `task` is the caller's."""
    settings = experiment.data
    source: Source
    if own is not None:
        source = own
    elif ":" in settings.name:
        source, task = _from_factory(experiment, task)
    elif settings.name in TEXTS:
        text_task = None if settings.task == "default" else settings.task
        source = load_text(
            settings.name,
            settings.dir or None,
            task=text_task,
            vocabulary=settings.vocabulary_size,
            length=settings.sequence_length,
        )
    else:
        source = load(settings.name, settings.dir or None)
        if settings.augment != "default":
            source = replace(source, augment=settings.augment)
    divided = _divided(source, experiment, shares)
    return divided if task is None else replace(divided, task=task)


def _from_factory(experiment: Experiment, task: Task | None) -> tuple[Source, Task | None]:
    """Return the data that the function at ``module:factory`` makes, and its task if it is the user's own data."""
    name = experiment.data.name
    try:
        answer: Any = imported(name, ConfigError, f"it returns {_FACTORY}")()
    except NestlingError:
        raise
    except Exception as problem:  # whatever a user's own code raises
        raise ConfigError(
            f"the data {name!r} could not be made: {type(problem).__name__}: {first_line(problem)}"
        ) from problem
    if not isinstance(answer, dict) or "clients" not in answer:
        if is_source(answer):
            return answer, task
        raise ConfigError(f"the data {name!r} is a {type(answer).__name__}: its factory returns {_FACTORY}")
    of_data = {key: answer[key] for key in answer if key in _DATA_KEYS}
    of_task = {key: answer[key] for key in answer if key in _TASK_KEYS}
    unknown = sorted(answer.keys() - of_data.keys() - of_task.keys())
    if unknown:
        known = [*_DATA_KEYS, *_TASK_KEYS]
        raise ConfigError(f"the data {name!r} has no {unknown[0]!r}{nearest(unknown[0], known)}")
    data = own_data(**{"num_clients": experiment.fleet.clients, "name": name, **of_data})
    if task is not None:
        of_task = {"task": task}
    return with_task(data, **of_task, accelerate=experiment.accelerate != "off")


def is_source(value: Any) -> TypeGuard[Source]:
    """Return whether a value is data of ours, divided among clients or not."""
    parts = ("test", "test_share", "client", "size")
    return isinstance(value, Dataset | Text) or all(hasattr(value, part) for part in parts)


@singledispatch
def _divided(source: Any, experiment: Experiment, shares: Partition | None) -> DividedData:
    """Return `FederatedData` as it is; raise if it is empty, or if a setting has no effect on it."""
    if shares is not None:
        raise ConfigError(f"{source.name} says itself which client holds what: leave out partition=…")
    if not len(source.test):
        raise _nothing_to_test_on(source)
    _refuse_unused(experiment, source.name, ("partition",))
    accelerate = experiment.accelerate != "off"
    task = Classification(source.classes, accelerate) if source.classes else Regression()
    return DividedData(source, source, task)


def _changed(experiment: Experiment, names: Iterable[str]) -> list[str]:
    """Return those settings of the data that differ from their defaults."""
    default = Experiment().data
    return [name for name in names if getattr(experiment.data, name) != getattr(default, name)]


# ---- own data


@_divided.register
def _divided_own_clients(data: OwnClients, experiment: Experiment, shares: Partition | None) -> DividedData:
    if shares is not None:
        raise ConfigError(f"{data.name} is a list of clients, who say themselves what they hold: leave out partition=…")
    _refuse_unused(experiment, data.name, ("partition",))
    for client, samples in enumerate(data.clients if data.reader is None else ()):
        if len(samples) < experiment.data.min_samples:
            raise _too_few(client, len(samples), experiment)
    data.report_one_class()
    return DividedData(data, data, _task_of(data, experiment), public=data.public if len(data.public) else None)


@_divided.register
def _divided_own_arrays(data: OwnArrays, experiment: Experiment, shares: Partition | None) -> DividedData:
    _refuse_unused(experiment, data.name, ())
    labels = data.for_partition()
    if shares is None:
        if not data.one_class_each and experiment.data.partition not in ("iid", "user"):
            raise ConfigError(
                f"{data.name} has no classes of samples to divide it by: use partition='iid', or 'user' with users=…"
            )
        shares = _partition(experiment, labels, torch.arange(len(data)))
    else:
        _check_own(shares, labels)
    for client, numbers in enumerate(shares.train):
        if len(numbers) < experiment.data.min_samples:
            raise _too_few(client, len(numbers), experiment)
    divided = data.divided(shares)
    divided.report_one_class()
    public = data.public if len(data.public) else None
    return DividedData(data, divided, _task_of(data, experiment), shares, public)


def _refuse_unused(experiment: Experiment, name: str, more: tuple[str, ...]) -> None:
    """Raise if settings have no effect on own data."""
    unused = (*more, "augment", "resize", "max_samples", "validation", "public_share", "public_from_test", "task")
    for setting in _changed(experiment, unused):
        instead = {"validation": "validation", "public_share": "public", "public_from_test": "public"}.get(setting)
        raise ConfigError(
            f"data.{setting} has no effect on {name}, which is not one of our datasets: leave it out"
            + (f", and give {instead}=… beside the clients" if instead else "")
        )
    if experiment.evaluate.samples:
        raise ConfigError(f"evaluate.samples has no effect on {name}: hand in as many test samples as you want")


def _too_few(client: int, samples: int, experiment: Experiment) -> ConfigError:
    least = experiment.data.min_samples
    held = "no data" if not samples else f"{samples} samples, fewer than data.min_samples={least}"
    return ConfigError(
        f"client {client} has {held}: leave it out, or set data.min_samples=0, which lets clients be empty"
    )


def _task_of(data: OwnClients | OwnArrays, experiment: Experiment) -> Task:
    """Return the task of data by its targets, for callers that hand in none."""
    if data.kind == "any":
        return OwnTask(_no_loss)
    return task_by_targets(data, data.classes, accelerate=experiment.accelerate != "off")


def _no_loss(model: Any, batch: Any) -> Any:
    raise ConfigError("this data has no task: hand in task=…")


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
