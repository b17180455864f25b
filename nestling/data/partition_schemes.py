"""The schemes of `partition`: each returns the owner of every training and every test sample."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.data.dataset import Dataset
from nestling.errors import DataError
from nestling.events import report

Owners = NDArray[np.int64]  # the client of every sample; −1 for no client
Random = np.random.Generator


def deal(samples: int, clients: int, random: Random) -> Owners:
    """Return random owners of samples; the sizes of clients differ by at most one."""
    return random.permutation(np.arange(samples, dtype=np.int64) % clients)


# --- classes ---------------------------------------------------------------------------------------------------------


def by_classes(dataset: Dataset, clients: int, each: int, random: Random) -> tuple[Owners, Owners]:
    """Give every client `each` classes, and cut every class into equal shards for its holders."""
    sizes = np.bincount(dataset.targets.numpy(), minlength=dataset.classes)
    holds = _draw_classes(sizes, clients, each, random, dataset.name)
    owners = []
    for targets in (dataset.targets.numpy(), dataset.test_targets.numpy()):
        owner = np.full(len(targets), -1, dtype=np.int64)
        for label, members in _samples_by_class(targets, dataset.classes):
            holders = random.permutation(np.flatnonzero(holds[:, label]))
            if len(holders):
                owner[members] = holders[deal(len(members), len(holders), random)]
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


def by_shards(dataset: Dataset, clients: int, each: int, random: Random) -> tuple[Owners, Owners]:
    """Let every client draw `each` shards, as HeteroFL's authors do; samples that nobody draws are reported."""
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


def by_dirichlet(dataset: Dataset, clients: int, alpha: float, minimum: int, random: Random) -> tuple[Owners, Owners]:
    """Draw every client's share of each class from a Dirichlet distribution."""
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


def by_user(dataset: Dataset, clients: int, minimum: int, random: Random) -> tuple[Owners, Owners]:
    """Draw users of the data as clients."""
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
    return train, deal(len(dataset.test_targets), clients, random)
