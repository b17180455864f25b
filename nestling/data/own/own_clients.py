"""`OwnClients`: the samples of every client; and `OwnArrays`: samples that have to be divided among clients first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from nestling.data.dataset import Dataset
from nestling.data.lazy import Lazy
from nestling.data.own.client_reader import ClientReader
from nestling.data.own.own_samples import OwnSamples, check_targets
from nestling.data.partition import Partition
from nestling.events import report
from nestling.model_inputs import Inputs, chosen, tensors_of


@dataclass(frozen=True, eq=False, kw_only=True)
class _Own:
    """What divided and undivided data have in common: samples to test on, and what targets are.

    Attributes
    ----------
    name
        The name in reports.
    test, validation
        The samples to test on, and those by which the best round is chosen.
    public
        Samples that the server has without labels; may be empty.
    classes
        The number of classes, or tokens; 0 if targets are not classes.
    kind
        What targets are: ``"classes"``, ``"numbers"`` or ``"any"``.
    """

    name: str
    test: OwnSamples
    validation: OwnSamples
    public: OwnSamples
    classes: int = 0
    kind: str = "any"

    @property
    def model_options(self) -> dict[str, int]:
        """The number of classes and, of images, that of channels and their size."""
        shape = tensors_of(self.test.inputs)[0].shape[1:]
        return {"classes": self.classes, **({"channels": shape[0], "size": shape[-1]} if len(shape) > 1 else {})}

    def example(self, samples: int) -> Inputs:
        """Return inputs of a model: the first samples of the test set, repeated if it has fewer."""
        indices = torch.arange(samples, device="cpu") % len(self.test)
        return self.test.transform(chosen(self.test.inputs, indices), None)


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnClients(_Own):
    """Own data that is divided among clients: `FederatedData`.

    Attributes
    ----------
    clients
        The samples of every client.
    shares
        The indices of the test samples of every client, for its local accuracy; None for none.
    reader
        Reads the samples of clients on access; None if they are in memory.

    Examples
    --------
    >>> part = OwnSamples(torch.zeros(4, 2), torch.arange(4))
    >>> none = part.some(torch.arange(0))
    >>> data = OwnClients(name="own data", test=part, validation=none, public=none, clients=(part, part))
    >>> len(data), data.size(1), data.example(2).shape
    (2, 4, torch.Size([2, 2]))
    """

    clients: Sequence[OwnSamples]
    shares: Sequence[Tensor] | None = None
    reader: ClientReader | None = None

    @property
    def has_test_shares(self) -> bool:
        """Whether any client is tested on test samples of its own: if not, nobody asks all clients for theirs."""
        return self.shares is not None

    def __len__(self) -> int:
        return len(self.clients)

    def client(self, number: int) -> OwnSamples:
        """Return the samples that a client trains on."""
        return self.clients[number]

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""
        return len(self.clients[number])

    def test_share(self, number: int) -> Tensor:
        """Return the indices of the test samples that a client is tested on."""
        return torch.empty(0, dtype=torch.long) if self.shares is None else self.shares[number]

    def with_targets(self, kind: str, classes: int) -> OwnClients:
        """Return this data with what its targets are; raise `DataError` where they are something else."""
        if self.reader is not None:
            reader = replace(self.reader, kind=kind, classes=classes)
            reader(0)
            clients: Sequence[OwnSamples] = Lazy(len(self), reader)
        else:
            reader, clients = None, self.clients
            for number, samples in enumerate(clients):
                check_targets(samples, f"client {number}", kind, classes)
        check_targets(self.test, "the test samples", kind, classes)
        check_targets(self.validation, "the validation samples", kind, classes)
        return replace(self, clients=clients, reader=reader, kind=kind, classes=classes)

    def report_one_class(self) -> None:
        """Report an event if clients hold a single class: often meant, and sometimes a wrong column."""
        if self.kind != "classes" or self.reader is not None:
            return
        single = [k for k, samples in enumerate(self.clients) if len(samples) > 1 and len(samples.held()) == 1]
        if single:
            report(
                "client with one class",
                f"{len(single)} clients hold samples of a single class, the first of them client {single[0]}",
                count=len(single),
            )

    def most_classes(self) -> int:
        """Return one more than the highest label that is in memory."""
        parts = [*(self.clients if self.reader is None else [self.clients[0]]), self.test, self.validation]
        return _most(parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnArrays(_Own):
    """Own data that is not divided yet.

    Attributes
    ----------
    samples
        All training samples.
    users
        The user of each sample, (N,) int64, if known.
    """

    samples: OwnSamples
    users: Tensor | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def with_targets(self, kind: str, classes: int) -> OwnArrays:
        """Return this data with what its targets are; raise `DataError` where they are something else."""
        parts = (("training", self.samples), ("test", self.test), ("validation", self.validation))
        for part, samples in parts:
            check_targets(samples, f"the {part} samples", kind, classes)
        return replace(self, kind=kind, classes=classes)

    def most_classes(self) -> int:
        """Return one more than the highest label."""
        return _most([self.samples, self.test, self.validation])

    @property
    def one_class_each(self) -> bool:
        """Whether every sample has one class, by which samples can be divided."""
        return self.kind == "classes" and self.samples.outputs.dim() == 1

    def for_partition(self) -> Dataset:
        """Return a dataset with the labels and users of these samples, from which `partition` can divide them."""
        labels, test = (self._labels(part) for part in (self.samples, self.test))
        return Dataset(
            name=self.name,
            inputs=torch.zeros(len(labels), 1),
            targets=labels,
            test_inputs=torch.zeros(len(test), 1),
            test_targets=test,
            classes=max(1, self.classes) if self.one_class_each else 1,
            users=self.users,
        )

    def _labels(self, samples: OwnSamples) -> Tensor:
        return samples.outputs if self.one_class_each else torch.zeros(len(samples), dtype=torch.long)

    def divided(self, shares: Partition) -> OwnClients:
        """Return the samples of every client."""
        clients = Lazy(len(shares), partial(_part, self.samples, shares.train))
        return OwnClients(
            name=self.name,
            test=self.test,
            validation=self.validation,
            public=self.public,
            classes=self.classes,
            kind=self.kind,
            clients=clients,
            shares=shares.test if self.one_class_each else None,
        )


def _part(samples: OwnSamples, shares: Sequence[Tensor], number: int) -> OwnSamples:
    return samples.some(shares[number])


def _most(parts: Sequence[OwnSamples]) -> int:
    known = [part.outputs for part in parts if part.outputs.numel() and not part.outputs.is_floating_point()]
    return 1 + max((int(targets.max()) for targets in known), default=-1)
