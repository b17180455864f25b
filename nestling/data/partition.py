"""Partition the training and test sets among clients.

Each scheme computes the client of every sample, so no sample can be assigned twice.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.data.dataset import Dataset
from nestling.errors import DataError, nearest
from nestling.events import report
from nestling.number_checks import whole
from nestling.seeds import numpy_stream
from nestling.settings.structs import MOST_ALIKE

SCHEMES = ("iid", "classes", "dirichlet", "user", "heterofl-shards")
_BY_CLASSES = ("classes", "heterofl-shards")
Owners = NDArray[np.int64]  # the client of every sample; −1 for no client
Random = np.random.Generator


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
        train, test = (_deal(len(targets), clients, random) for targets in (dataset.targets, dataset.test_targets))
    elif scheme == "classes":
        assert classes_per_client is not None
        train, test = _by_classes(dataset, clients, classes_per_client, random)
    elif scheme == "heterofl-shards":
        assert classes_per_client is not None
        train, test = _by_shards(dataset, clients, classes_per_client, random)
    elif scheme == "dirichlet":
        assert alpha is not None
        train, test = _by_dirichlet(dataset, clients, alpha, minimum, random)
    else:
        train, test = _by_user(dataset, clients, minimum, random)
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


def _deal(samples: int, clients: int, random: Random) -> Owners:
    """Return random owners of samples; the sizes of clients differ by at most one."""
    return random.permutation(np.arange(samples, dtype=np.int64) % clients)


# --- classes ---------------------------------------------------------------------------------------------------------


def _by_classes(dataset: Dataset, clients: int, each: int, random: Random) -> tuple[Owners, Owners]:
    sizes = np.bincount(dataset.targets.numpy(), minlength=dataset.classes)
    holds = _draw_classes(sizes, clients, each, random, dataset.name)
    owners = []
    for targets in (dataset.targets.numpy(), dataset.test_targets.numpy()):
        owner = np.full(len(targets), -1, dtype=np.int64)
        for label, members in _samples_by_class(targets, dataset.classes):
            holders = random.permutation(np.flatnonzero(holds[:, label]))
            if len(holders):
                owner[members] = holders[_deal(len(members), len(holders), random)]
        owners.append(owner)
    return owners[0], owners[1]


def _draw_classes(sizes: NDArray[Any], clients: int, each: int, random: Random, name: str) -> NDArray[np.bool_]:
    """Draw which client holds which class, (clients, classes): `each` different classes per client."""
    present = int((sizes > 0).sum())
    if each > present:
        raise DataError(f"a client cannot hold {each} classes: {name} has {present}")
    if clients * each < present:
        raise DataError(
            f"{clients} clients with {each} classes each leave some of the {present} classes of {name} to nobody: "
            f"use at least {-(-present // each)} clients, or {-(-present // clients)} classes per client"
        )
    left = _quotas(np.minimum(sizes, clients), clients * each, random, name)
    holds = np.zeros((clients, len(sizes)), dtype=bool)
    for client in range(clients):
        # A class that needs all remaining clients is always chosen, the others at random in proportion to what is left
        # of them. No class ever needs more clients than remain, so this cannot run into a dead end.
        with np.errstate(divide="ignore"):
            keys = np.where(left == clients - client, -1.0, random.exponential(size=len(left)) / left)
        chosen = np.argpartition(keys, each - 1)[:each]
        holds[client, chosen] = True
        left[chosen] -= 1
    return holds


def _quotas(most: NDArray[Any], total: int, random: Random, name: str) -> NDArray[Any]:
    """Divide `total` shards equally among classes, but give none of them more than `most`."""
    if most.sum() < total:
        raise DataError(
            f"{total:,} shards cannot be cut from {name} so that each has a sample: "
            "use fewer clients, or fewer classes per client"
        )
    limit = next(limit for limit in range(int(most.max()), -1, -1) if np.minimum(most, limit).sum() <= total)
    quotas: NDArray[Any] = np.minimum(most, limit)
    one_more = random.permutation(np.flatnonzero(most > limit))[: total - quotas.sum()]
    quotas[one_more] += 1
    return quotas


def _samples_by_class(targets: NDArray[Any], classes: int) -> list[tuple[int, NDArray[Any]]]:
    """List the classes, each with the indices of its samples."""
    order = np.argsort(targets, kind="stable")
    borders = np.cumsum(np.bincount(targets, minlength=classes))[:-1]
    return list(enumerate(np.split(order, borders)))


# --- heterofl-shards -------------------------------------------------------------------------------------------------


def _by_shards(dataset: Dataset, clients: int, each: int, random: Random) -> tuple[Owners, Owners]:
    classes, total = dataset.classes, clients * each
    if each > classes:
        raise DataError(f"a client cannot hold {each} classes: {dataset.name} has {classes}")
    if total % classes:
        raise DataError(
            f"{clients} clients with {each} shards each cannot share the {classes} classes of {dataset.name} equally: "
            "use numbers whose product is a multiple of it, or the partition 'classes'"
        )
    drawn = random.permutation(np.arange(total) % classes).reshape(clients, each)
    holds = np.zeros((clients, classes), dtype=bool)
    holds[np.arange(clients)[:, None], drawn] = True
    train, test = (
        _deal_shards(targets.numpy(), holds, total // classes, random)
        for targets in (dataset.targets, dataset.test_targets)
    )
    _report_unused(train, test, int((holds.sum(1) < each).sum()))
    return train, test


def _deal_shards(targets: NDArray[Any], holds: NDArray[np.bool_], shards: int, random: Random) -> Owners:
    """Return the owners of samples: every client gets one shard of each class that it holds."""
    owner = np.full(len(targets), -1, dtype=np.int64)
    for label, members in _samples_by_class(targets, holds.shape[1]):
        parts = np.array_split(members, shards)  # in the order of the data
        holders = np.flatnonzero(holds[:, label])
        for client, shard in zip(holders, random.permutation(shards), strict=False):
            owner[parts[shard]] = client
    return owner


def _report_unused(train: Owners, test: Owners, twice: int) -> None:
    unused, unused_test = int((train < 0).sum()), int((test < 0).sum())
    if unused or unused_test:
        report(
            "partition incomplete",
            f"the partition heterofl-shards leaves {unused:,} of {len(train):,} training and {unused_test:,} of "
            f"{len(test):,} test samples to nobody, as {twice} clients drew a class twice: data.partition=classes uses "
            "all of them",
        )


# --- dirichlet -------------------------------------------------------------------------------------------------------


def _by_dirichlet(dataset: Dataset, clients: int, alpha: float, minimum: int, random: Random) -> tuple[Owners, Owners]:
    targets = dataset.targets.numpy()
    train = np.full(len(targets), -1, dtype=np.int64)
    for _, members in _samples_by_class(targets, dataset.classes):
        ends = np.cumsum(random.dirichlet(np.full(clients, alpha)))
        train[random.permutation(members)] = _owners(np.floor(ends / ends[-1] * len(members)).astype(np.int64))
    _enforce_minimum(train, clients, minimum, random)

    test = np.full(len(dataset.test_targets), -1, dtype=np.int64)
    for label, members in _samples_by_class(dataset.test_targets.numpy(), dataset.classes):
        held = np.bincount(train[targets == label], minlength=clients)
        if not held.any():
            held[:] = 1  # a class that nobody trains on: equal shares for everyone
        order = random.permutation(clients)  # rounding would always favour the same clients
        test[random.permutation(members)] = order[_owners(np.cumsum(held[order]) * len(members) // held.sum())]
    return train, test


def _owners(ends: NDArray[np.int64]) -> Owners:
    """Return the owner of each sample, where client k owns the samples from the end of client k − 1 to ``ends[k]``.

    >>> _owners(np.array([2, 2, 5]))
    array([0, 0, 2, 2, 2])
    """
    return np.repeat(np.arange(len(ends), dtype=np.int64), np.diff(ends, prepend=0))


def _enforce_minimum(owners: Owners, clients: int, minimum: int, random: Random) -> None:
    """Move samples, one by one, from the largest clients to those with fewer than the minimum."""
    sizes = np.bincount(owners, minlength=clients)
    too_small = np.flatnonzero(sizes < minimum)
    if not len(too_small):
        return
    held = np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])
    donors = [(-int(sizes[client]), int(client)) for client in np.flatnonzero(sizes > minimum)]
    heapq.heapify(donors)
    samples: dict[int, list[int]] = {}
    for client in np.repeat(too_small, minimum - sizes[too_small]).tolist():
        negative_size, donor = donors[0]
        if donor not in samples:
            samples[donor] = random.permutation(held[donor]).tolist()
        owners[samples[donor].pop()] = client
        heapq.heapreplace(donors, (negative_size + 1, donor))


# --- user ------------------------------------------------------------------------------------------------------------


def _by_user(dataset: Dataset, clients: int, minimum: int, random: Random) -> tuple[Owners, Owners]:
    if dataset.users is None:
        raise DataError(f"{dataset.name} does not name the users of its samples: use another partition than 'user'")
    users, user_of, sizes = np.unique(dataset.users.numpy(), return_inverse=True, return_counts=True)
    eligible = np.flatnonzero(sizes >= minimum)
    if clients > len(eligible):
        raise DataError(
            f"{clients} clients are more than the {len(eligible)} users of {dataset.name} "
            f"with at least {minimum} samples"
        )
    client_of = np.full(len(users), -1, dtype=np.int64)
    client_of[np.sort(random.choice(eligible, clients, replace=False))] = np.arange(clients)
    train = client_of[user_of]
    if dataset.test_users is not None and np.isin(dataset.test_users.numpy(), users).all():
        return train, client_of[np.searchsorted(users, dataset.test_users.numpy())]
    return train, _deal(len(dataset.test_targets), clients, random)


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
