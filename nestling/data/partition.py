"""Partition the training and test sets among clients.

Each scheme computes the client of every sample, so no sample can be assigned twice.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestling.data.dataset import Dataset
from nestling.data.partition_schemes import Owners, by_classes, by_dirichlet, by_shards, by_user, deal
from nestling.errors import DataError, nearest
from nestling.number_checks import whole
from nestling.seeds import numpy_stream
from nestling.settings.structs import MOST_ALIKE

SCHEMES = ("iid", "classes", "dirichlet", "user", "heterofl-shards")
_BY_CLASSES = ("classes", "heterofl-shards")


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of all clients.

    The entries are views of one tensor, so that there can be any number of clients: clone one before you pickle it.
    Those of a text (`nestling.data.text.corpus.TextShares`) are read on access.

    Parameters
    ----------
    train
        Per client: indices into the training set, sorted.
    test
        Per client: indices into the test set, sorted; for its local accuracy.
    labels
        Per client: the classes it holds in training, sorted.
    """

    train: Sequence[Tensor]
    test: Sequence[Tensor]
    labels: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.train)


def partition(
    dataset: Dataset,
    clients: int,
    scheme: str = "iid",
    *,
    classes_per_client: int | None = None,
    alpha: float | None = None,
    minimum: int = 1,
    seed: int = 0,
) -> Partition:
    """Partition a dataset among clients; the same seed gives the same partition.

    Parameters
    ----------
    dataset
        The data to partition.
    clients
        The number of clients.
    scheme
        - ``"iid"``: at random, in equal shares.
        - ``"classes"``: every client gets `classes_per_client` classes; every class is cut into equal shards, one for
          each client that holds it (HeteroFL, FedRolex). The test samples of a class go to the same clients.
        - ``"dirichlet"``: the shares of each class are drawn from a Dirichlet distribution with parameter `alpha`;
          small values are far from IID (NeFL, FedMorph). The test set is divided in the same proportions.
        - ``"user"``: a client is one of the users in the data, drawn at random if there are more users than clients.
          Test samples go to their users if those are among the training users, else in equal shares at random.
        - ``"heterofl-shards"``: as ``"classes"``, but as HeteroFL's authors do it, which leaves samples unused; for
          comparison with published numbers. Every class is cut into equal shards in the order of the data; clients
          draw `classes_per_client` shards each without looking, and who draws a class twice keeps one shard of it. Test
          samples are divided in the same way among the same clients. An event says how many samples nobody got.
    classes_per_client
        For ``"classes"`` and ``"heterofl-shards"`` only.
    alpha
        For ``"dirichlet"`` only.
    minimum
        The minimum number of training samples of a client; 0 allows empty clients.
    seed
        The seed of the experiment.

    Notes
    -----
    HeteroFL's code loses a shard when a client draws a class twice; here, except for ``"heterofl-shards"``, each sample
    is used exactly once. Dirichlet
    shares are usually redrawn until everyone has the minimum, which for small `alpha` may never happen; here the
    largest clients give samples to those with too few.

    Examples
    --------
    >>> from nestling.data import from_arrays
    >>> data = from_arrays(np.zeros((12, 2)), [0, 1, 2, 3] * 3)
    >>> shares = partition(data, 4, "classes", classes_per_client=2)
    >>> [len(labels) for labels in shares.labels], sorted(torch.cat(shares.train).tolist()) == list(range(12))
    ([2, 2, 2, 2], True)
    """
    check_options(scheme, classes_per_client, alpha)
    whole("clients", clients, 1, error=DataError)
    whole("minimum", minimum, 0, error=DataError)
    whole("seed", seed, error=DataError)
    if clients * minimum > len(dataset.targets):
        raise DataError(
            f"{clients:,} clients at a minimum of {minimum:,} need {clients * minimum:,} training samples, "
            f"but {dataset.name} has {len(dataset.targets):,}: use fewer clients, or a smaller minimum"
        )
    random = numpy_stream(seed, "partition", scheme)
    if scheme == "iid":
        train, test = (deal(len(targets), clients, random) for targets in (dataset.targets, dataset.test_targets))
    elif scheme == "classes":
        assert classes_per_client is not None
        train, test = by_classes(dataset, clients, classes_per_client, random)
    elif scheme == "heterofl-shards":
        assert classes_per_client is not None
        train, test = by_shards(dataset, clients, classes_per_client, random)
    elif scheme == "dirichlet":
        assert alpha is not None
        train, test = by_dirichlet(dataset, clients, alpha, minimum, random)
    else:
        train, test = by_user(dataset, clients, minimum, random)
    sizes = np.bincount(train[train >= 0], minlength=clients)
    if sizes.min() < minimum:
        raise DataError(
            f"a client got {sizes.min()} samples, fewer than the minimum of {minimum}: use fewer clients, "
            "or a smaller minimum"
        )
    return Partition(_shares(train, clients), _shares(test, clients), _labels(dataset, train, clients))


def counts(dataset: Dataset, shares: Partition) -> Tensor:
    """Return how many training samples of each class each client has: (clients, classes), int64.

    >>> from nestling.data import from_arrays
    >>> data = from_arrays(np.zeros((6, 2)), [0, 0, 1, 1, 1, 1])
    >>> counts(data, partition(data, 2, "classes", classes_per_client=1)).sort(0).values
    tensor([[0, 0],
            [2, 4]])
    """
    client = torch.arange(len(shares)).repeat_interleave(torch.tensor([len(share) for share in shares.train]))
    cells = client * dataset.classes + dataset.targets[torch.cat(list(shares.train))]
    return torch.bincount(cells, minlength=len(shares) * dataset.classes).view(len(shares), dataset.classes)


def check_options(scheme: str, classes_per_client: int | None, alpha: float | None) -> None:
    """Raise `DataError` for options of :func:`partition` that are wrong for any dataset."""
    if scheme not in SCHEMES:
        raise DataError(f"there is no partition {scheme!r}{nearest(str(scheme), SCHEMES)}")
    for name, option, owners in (
        ("classes_per_client", classes_per_client, _BY_CLASSES),
        ("alpha", alpha, ("dirichlet",)),
    ):
        if option is None and scheme in owners:
            raise DataError(f"the partition {scheme!r} needs {name}")
        if option is not None and scheme not in owners:
            named = " or ".join(map(repr, owners))
            raise DataError(f"{name}={option!r} belongs to the partition {named}, not to {scheme!r}")
    if classes_per_client is not None:
        whole("classes_per_client", classes_per_client, 1, error=DataError)
    if alpha is not None and not (isinstance(alpha, int | float) and 0 < alpha <= MOST_ALIKE):
        raise DataError(f"alpha must be a number above 0 and at most {MOST_ALIKE:,}, not {alpha!r}")


# --- from owners to shares -------------------------------------------------------------------------------------------


def _shares(owners: Owners, clients: int) -> tuple[Tensor, ...]:
    """Return the indices of the samples of every client."""
    order = np.argsort(owners, kind="stable")  # stable: sorted within every client
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    values = torch.from_numpy(order[len(order) - sizes.sum() :].astype(np.int64, copy=False))
    empty = torch.empty(0, dtype=torch.int64)
    with _gc_paused():
        views = iter(values.split(sizes[sizes > 0].tolist()) if len(values) else ())
        return tuple([next(views) if size else empty for size in sizes.tolist()])


def _labels(dataset: Dataset, owners: Owners, clients: int) -> tuple[Tensor, ...]:
    """Return the classes that every client holds in training."""
    owned = owners >= 0
    cells = np.sort(owners[owned] * dataset.classes + dataset.targets.numpy()[owned])
    cells = cells[np.diff(cells, prepend=-1) > 0]
    ends = np.cumsum(np.bincount(cells // dataset.classes, minlength=clients)).tolist()
    held = cells % dataset.classes
    raw, size = held.tobytes(), held.itemsize
    shared: dict[bytes, Tensor] = {}  # many clients hold the same classes, and share one tensor
    labels = []
    with _gc_paused():
        for start, end in zip([0, *ends], ends, strict=False):
            key = raw[start * size : end * size]
            if key not in shared:
                shared[key] = torch.from_numpy(held[start:end].copy())
            labels.append(shared[key])
    return tuple(labels)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause garbage collection, which would scan hundreds of thousands of new tensors many times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
