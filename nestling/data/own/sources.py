"""`own_data`: the user's own data, whatever it comes as, looked at before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nestling.data.lazy import Lazy
from nestling.data.own import flower_dataset, hugging_face, in_memory, torch_dataset
from nestling.data.own.client_reader import ClientReader
from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.data.own.own_samples import OwnSamples, check_form, check_values
from nestling.errors import DataError

_ADAPTERS = (in_memory, hugging_face, torch_dataset)  # the first one that knows a source makes samples of it
_KINDS = "arrays or tensors (inputs, targets), a dictionary of them, a torch Dataset, or a Hugging Face Dataset"
_PUBLIC = "the public samples"
_TEST = "there is nothing to test on: give test=…, as every experiment tests its models"


def own_data(
    clients: Any,
    test: Any = None,
    *,
    validation: Any = None,
    public: Any = None,
    num_clients: int = 0,
    label: str = "",
    users: Any = None,
    name: str = "own data",
) -> OwnClients | OwnArrays:
    """Return own data, divided among clients or to be divided; raise `DataError` where it cannot be right.

    Parameters
    ----------
    clients
        A list with the samples of every client; samples that are to be divided; a function from the number of a client
        to its samples; or a ``FederatedDataset`` of flwr-datasets. Samples are a tuple (inputs, targets) of arrays or
        tensors, a dictionary of them with the targets under ``labels`` or ``label``, a torch ``Dataset``, or a Hugging
        Face ``Dataset``.
    test, validation
        The samples to test on, and those by which the best round is chosen, in any of these forms.
    public
        Inputs that the server has without labels: an array, or samples of which the labels are left out.
    num_clients
        The number of clients, for a function.
    label
        The key, or column, of the targets.
    users
        The user of each sample, for a division by user.
    name
        The name in reports.

    Examples
    --------
    >>> parts = [(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])) for client in range(3)]
    >>> data = own_data(parts, test=parts[0])
    >>> len(data), data.size(2)
    (3, 4)
    """
    if flower_dataset.matches(clients):
        test = flower_dataset.test_of(clients) if test is None else test
        clients = flower_dataset.clients_of(clients)
    if test is None:
        raise DataError(_TEST + (_instead(clients) if isinstance(clients, Mapping) and "train" in clients else ""))
    convert = partial(as_samples, label=label)
    tested = convert(test, "the test samples")
    check_values(tested, "the test samples")
    if not len(tested):
        raise DataError(_TEST)
    checked = tested.some(torch.arange(0)) if validation is None else convert(validation, "the validation samples")
    check_values(checked, "the validation samples")
    if len(checked):
        check_form(checked, "the validation samples", tested, "the test samples")
    unlabelled = tested.some(torch.arange(0)) if public is None else _unlabelled(convert(public, _PUBLIC), tested)
    parts: dict[str, Any] = {"name": name, "test": tested, "validation": checked, "public": unlabelled}
    if _adapter(clients) is not None:
        samples = convert(clients, "the training samples")
        check_values(samples, "the training samples")
        check_form(samples, "the training samples", tested, "the test samples")
        numbers = None if users is None else torch.as_tensor(users).long()
        return OwnArrays(samples=samples, users=numbers, **parts)
    if callable(clients):
        if num_clients < 1:
            raise DataError(f"clients that a function reads need their number: give num_clients=…, not {num_clients}")
        reader = ClientReader(clients, convert, tested.some(torch.arange(1)))
        reader.check_sendable()
        return OwnClients(clients=Lazy(num_clients, reader), reader=reader, **parts)
    return OwnClients(clients=_listed(clients, convert, tested), **parts)


def as_samples(source: Any, what: str, label: str = "") -> OwnSamples:
    """Return the samples of any source, which errors call `what`."""
    adapter = _adapter(source)
    if adapter is None:
        raise DataError(f"{what}: samples are {_KINDS}, not a {type(source).__name__}{_instead(source)}")
    samples: OwnSamples = adapter.samples_of(source, what, label)
    return samples


def _unlabelled(samples: OwnSamples, tested: OwnSamples) -> OwnSamples:
    """Return samples without their targets; raise `DataError` unless they look like those of the test."""
    check_values(samples, _PUBLIC)
    if not isinstance(samples.inputs, Tensor):
        raise DataError(f"{_PUBLIC} are for models of one input tensor: leave out public=…")
    bare, unlabelled = (replace(one, outputs=torch.empty(len(one), 0)) for one in (tested, samples))
    check_form(unlabelled, _PUBLIC, bare, "the test samples")
    return unlabelled


def _instead(source: Any) -> str:
    """Return what to give instead of something that holds samples in another form."""
    if isinstance(source, DataLoader):
        return ": give its dataset"
    if isinstance(source, list) and source:
        return ": give (inputs, targets) as a tuple, all inputs in one array"
    if isinstance(source, Mapping) and "train" in source:
        return ": give clients=data['train'] and test=data['test']"
    if isinstance(source, Mapping) and source:
        return ": give the samples of all clients as a list, such as list(clients.values())"
    return ": give a list" if isinstance(source, Iterator) else ""


def _adapter(source: Any) -> Any:
    return next((adapter for adapter in _ADAPTERS if adapter.matches(source)), None)


def _listed(clients: Any, convert: Any, tested: OwnSamples) -> tuple[OwnSamples, ...]:
    """Return the samples of a list of clients, all of them checked."""
    if not isinstance(clients, Sequence) or isinstance(clients, str | bytes) or not len(clients):
        kind = f"an empty {type(clients).__name__}" if clients in ([], ()) else f"a {type(clients).__name__}"
        raise DataError(
            f"clients are a list with {_KINDS} for each, or one of these to divide, or a function, not "
            f"{kind}{_instead(clients)}"
        )
    parts = []
    for number, source in enumerate(clients):
        what = f"client {number}"
        samples = convert(source, what)
        check_values(samples, what)
        if len(samples):
            check_form(samples, what, tested, "the test samples")
        parts.append(samples)
    return tuple(parts)
