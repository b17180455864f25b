"""What every partition promises: each sample once, the classes asked for, the minimum, the same for the same seed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.data import counts, from_arrays, partition
from nestling.errors import DataError
from nestling.events import collect

quick = settings(max_examples=60, deadline=None)


def dataset(targets, test_targets=(), classes=None, users=None, test_users=None):
    def inputs(labels):
        return np.zeros((len(labels), 1), np.float32)

    test = (inputs(test_targets), np.array(test_targets, dtype=np.int64))
    return from_arrays(
        inputs(targets), np.array(targets), test, classes=classes, users=users, test_users=test_users, name="toy"
    )


@st.composite
def datasets(draw):
    classes = draw(st.integers(1, 6))
    labels = st.integers(0, classes - 1)
    return dataset(draw(st.lists(labels, min_size=1, max_size=60)), draw(st.lists(labels, max_size=30)), classes)


def check_laws(data, shares, clients, minimum=1):
    assert len(shares) == len(shares.train) == len(shares.test) == len(shares.labels) == clients
    assert sorted(torch.cat(shares.train).tolist()) == list(range(len(data.targets)))
    for train, test, labels in zip(shares.train, shares.test, shares.labels, strict=True):
        assert train.dtype == test.dtype == labels.dtype == torch.int64
        assert len(train) >= minimum
        for share in (train, test):
            assert share.tolist() == sorted(share.tolist())
        assert torch.equal(labels, data.targets[train].unique())
    every = torch.cat(shares.test).tolist()
    assert len(every) == len(set(every))


def same(one, other):
    return all(
        torch.equal(a, b)
        for key in ("train", "test", "labels")
        for a, b in zip(getattr(one, key), getattr(other, key), strict=True)
    )


@quick
@given(data=datasets(), clients=st.integers(1, 60), seed=st.integers(0, 9))
def test_iid_shares_are_equal(data, clients, seed):
    clients = min(clients, len(data.targets))
    shares = partition(data, clients, seed=seed)
    check_laws(data, shares, clients)
    for part, whole in ((shares.train, data.targets), (shares.test, data.test_targets)):
        sizes = [len(share) for share in part]
        assert sum(sizes) == len(whole)
        assert max(sizes) - min(sizes) <= 1


@quick
@given(data=datasets(), clients=st.integers(1, 20), each=st.integers(1, 6), seed=st.integers(0, 9))
def test_classes_gives_each_client_exactly_so_many(data, clients, each, seed):
    sizes = data.targets.bincount(minlength=data.classes)
    present = int((sizes > 0).sum())
    possible = each <= present <= clients * each <= int(sizes.clamp(max=clients).sum())
    if not possible or clients > len(data.targets):
        with pytest.raises(DataError):
            partition(data, clients, "classes", classes_per_client=each, seed=seed)
        return
    shares = partition(data, clients, "classes", classes_per_client=each, seed=seed)
    check_laws(data, shares, clients)
    held = counts(data, shares)
    assert [len(labels) for labels in shares.labels] == [each] * clients
    for label in range(data.classes):  # equal shards
        sizes = [size for size in held[:, label].tolist() if size]
        assert not sizes or max(sizes) - min(sizes) <= 1
    for test, labels in zip(shares.test, shares.labels, strict=True):
        assert set(data.test_targets[test].tolist()) <= set(labels.tolist())
    trained = set(data.targets.tolist())
    dealt = sum(len(test) for test in shares.test)
    assert dealt == sum(label in trained for label in data.test_targets.tolist())


def test_classes_with_enough_test_samples_tests_exactly_the_labels():
    data = dataset(list(range(10)) * 50, list(range(10)) * 20)
    for each in (1, 2, 5, 9, 10):
        shares = partition(data, 20, "classes", classes_per_client=each)
        for test, labels in zip(shares.test, shares.labels, strict=True):
            assert torch.equal(data.test_targets[test].unique(), labels)
        assert (counts(data, shares) > 0).sum(0).unique().tolist() == [2 * each]


def test_classes_combine_in_many_ways():
    data = dataset(list(range(10)) * 50)
    shares = partition(data, 100, "classes", classes_per_client=2)
    assert len({tuple(labels.tolist()) for labels in shares.labels}) > 25  # of 45; shards in order would give 10


def test_heterofls_shards_lose_what_a_client_draws_twice():
    """By hand, with the sizes of MNIST: 200 shards of 300, of which some clients draw two of one class."""
    data = dataset(list(range(10)) * 6000, list(range(10)) * 1000)
    with collect() as events:
        shares = partition(data, 100, "heterofl-shards", classes_per_client=2)
    held = counts(data, shares)
    twice = int(((held > 0).sum(1) == 1).sum())
    assert 2 <= twice <= 20  # 9.5 on average
    assert held[held > 0].unique().tolist() == [300], "whole shards"
    assert int(held.sum()) == 60_000 - 300 * twice
    assert sum(len(test) for test in shares.test) == 10_000 - 50 * twice
    for train, test, labels in zip(shares.train, shares.test, shares.labels, strict=True):
        assert torch.equal(data.targets[train].unique(), labels)
        assert torch.equal(data.test_targets[test].unique(), labels), "training and test shares alike"
        for label in labels:
            own = train[data.targets[train] == label]
            assert torch.equal(own, torch.arange(int(own[0]), int(own[0]) + 3000, 10)), "in the order of the data"
    (event,) = events
    assert (event.kind, event.count) == ("partition incomplete", 1)
    assert f"leaves {300 * twice:,} of 60,000 training and {50 * twice:,} of 10,000 test samples" in event.message
    assert f"{twice} clients drew a class twice" in event.message


@quick
@given(data=datasets(), clients=st.integers(1, 12), each=st.integers(1, 4), seed=st.integers(0, 9))
def test_heterofls_shards_go_to_one_client_each(data, clients, each, seed):
    if each > data.classes or clients * each % data.classes:
        with pytest.raises(DataError, match=r"cannot hold|cannot share"):
            partition(data, clients, "heterofl-shards", classes_per_client=each, minimum=0, seed=seed)
        return
    with collect() as events:
        shares = partition(data, clients, "heterofl-shards", classes_per_client=each, minimum=0, seed=seed)
    for part, targets in ((shares.train, data.targets), (shares.test, data.test_targets)):
        every = torch.cat(list(part)).tolist()
        assert len(every) == len(set(every)) <= len(targets)
    assert max(len(labels) for labels in shares.labels) <= each
    used = sum(map(len, shares.train)) + sum(map(len, shares.test))
    assert bool(events) == (used < len(data.targets) + len(data.test_targets))


@quick
@given(
    data=datasets(),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-8, 0.01, 0.5, 1, 100.0]),
    minimum=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_dirichlet_keeps_the_minimum(data, clients, alpha, minimum, seed):
    minimum = min(minimum, len(data.targets) // clients)
    shares = partition(data, clients, "dirichlet", alpha=alpha, minimum=minimum, seed=seed)
    check_laws(data, shares, clients, minimum)
    assert sum(len(test) for test in shares.test) == len(data.test_targets)
    trained = set(data.targets.tolist())
    for test, labels in zip(shares.test, shares.labels, strict=True):
        assert set(data.test_targets[test].tolist()) & trained <= set(labels.tolist())


def test_dirichlet_is_less_alike_for_smaller_alpha_and_tests_in_proportion():
    data = dataset(list(range(10)) * 500, list(range(10)) * 100)

    def unlikeness(alpha):
        held = counts(data, partition(data, 20, "dirichlet", alpha=alpha)).double()
        return float((held / held.sum(1, keepdim=True) - 0.1).abs().mean())

    assert unlikeness(0.1) > 1.5 * unlikeness(1.0) > 6 * unlikeness(1000.0)
    shares = partition(data, 20, "dirichlet", alpha=0.5)
    for train, test in zip(shares.train, shares.test, strict=True):
        train_counts = data.targets[train].bincount(minlength=10)
        test_counts = data.test_targets[test].bincount(minlength=10)
        assert bool(((train_counts / 5 - test_counts).abs() <= 1).all())


def test_dirichlet_rounding_favours_nobody():
    data = dataset(list(range(10)) * 400, list(range(10)) * 10)  # ten test samples of a class for forty clients
    shares = partition(data, 40, "dirichlet", alpha=1e6)
    assert sum(len(test) > 0 for test in shares.test) > 30  # one order for all classes would give to the same ten


@quick
@given(
    users=st.lists(st.sampled_from([3, 7, 8, 20]), min_size=1, max_size=40),
    clients=st.integers(1, 4),
    seed=st.integers(0, 9),
    strangers=st.booleans(),
)
def test_user_gives_a_client_one_persons_samples(users, clients, seed, strangers):
    test_users = [99] * 10 if strangers else users[::2]
    data = dataset([0] * len(users), [0] * len(test_users), users=users, test_users=test_users)
    if clients > len(set(users)):
        with pytest.raises(DataError, match=f"{clients} clients"):
            partition(data, clients, "user", seed=seed)
        return
    shares = partition(data, clients, "user", seed=seed)
    people = [data.users[train].unique().tolist() for train in shares.train]
    assert all(len(person) == 1 for person in people)
    assert people == sorted(people)
    assert len({person for (person,) in people}) == clients
    for (person,), train, test in zip(people, shares.train, shares.test, strict=True):
        assert len(train) == users.count(person)
        if strangers:
            assert len(test) in (10 // clients, -(-10 // clients))
        else:
            assert test.tolist() == [k for k, user in enumerate(test_users) if user == person]


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "iid"},
        {"scheme": "classes", "classes_per_client": 2},
        {"scheme": "dirichlet", "alpha": 0.1, "minimum": 3},
        {"scheme": "user"},
        {"scheme": "heterofl-shards", "classes_per_client": 2},
    ],
    ids=lambda options: options["scheme"],
)
def test_the_seed_alone_decides(options):
    labels = list(range(5)) * 40
    data = dataset(labels, labels, users=[k // 10 for k in range(200)])
    first = partition(data, 10, seed=3, **options)
    torch.manual_seed(2)
    np.random.seed(2)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    assert same(first, partition(data, 10, seed=3, **options))
    assert not same(first, partition(data, 10, seed=4, **options))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), np.random.get_state()[2]) == states[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "IID"}, "there is no partition 'IID'"),
        ({"clients": 0}, "clients must be a whole number of at least 1, not 0"),
        ({"clients": 2.0}, "not 2.0"),
        ({"clients": True}, "not True"),
        ({"clients": 13}, "13 clients at a minimum of 1 need 13 training samples, but toy has 12"),
        ({"minimum": 5}, "need 15 training samples"),
        ({"minimum": -1}, "minimum must be"),
        ({"seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"scheme": "classes"}, "'classes' needs classes_per_client"),
        ({"scheme": "heterofl-shards"}, "'heterofl-shards' needs classes_per_client"),
        ({"classes_per_client": 2}, "belongs to the partition 'classes' or 'heterofl-shards', not to 'iid'"),
        (
            {"scheme": "heterofl-shards", "classes_per_client": 2},
            "3 clients with 2 shards each cannot share the 4 classes",
        ),
        ({"scheme": "dirichlet"}, "'dirichlet' needs alpha"),
        ({"alpha": 0.5}, "alpha=0.5 belongs to the partition 'dirichlet', not to 'iid'"),
        ({"scheme": "classes", "classes_per_client": 0}, "at least 1, not 0"),
        ({"scheme": "classes", "classes_per_client": 5}, "cannot hold 5 classes: toy has 4"),
        ({"scheme": "classes", "classes_per_client": 1}, "use at least 4 clients, or 2 classes per client"),
        ({"scheme": "classes", "classes_per_client": 2, "clients": 12}, "24 shards cannot be cut from toy"),
        ({"scheme": "dirichlet", "alpha": 0}, "alpha must be a number above 0 and at most 1,000,000, not 0"),
        ({"scheme": "dirichlet", "alpha": float("nan")}, "not nan"),
        ({"scheme": "dirichlet", "alpha": float("inf")}, "not inf"),
        ({"scheme": "user"}, "does not name the users of its samples"),
    ],
)
def test_refuses_the_impossible(options, message):
    data = dataset([0] * 9 + [1, 2, 3])
    with pytest.raises(DataError, match=message):
        partition(data, **({"clients": 3} | options))


def test_classes_refuses_a_minimum_that_a_small_class_cannot_give():
    with pytest.raises(DataError, match="a client got 3 samples, fewer than the minimum of 4"):
        partition(dataset([0] * 9 + [1] * 3), 2, "classes", classes_per_client=1, minimum=4)


def test_users_with_too_few_samples_do_not_count():
    data = dataset([0] * 5, users=[1, 1, 1, 2, 3])
    assert partition(data, 1, "user", minimum=2).train[0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="2 clients are more than the 1 users of toy with at least 2 samples"):
        partition(data, 2, "user", minimum=2)


def test_more_clients_than_samples_where_clients_may_be_empty():
    shares = partition(dataset([0, 1, 0]), 5, minimum=0)
    assert sorted(len(share) for share in shares.train) == [0, 0, 1, 1, 1]
    assert sum(len(labels) for labels in shares.labels) == 3


def test_hundreds_of_thousands_of_clients_share_one_tensor():
    labels = np.arange(350_000) % 10
    shares = partition(dataset(labels, labels[:1000]), 342_477)
    assert shares.train[0].untyped_storage().data_ptr() == shares.train[-1].untyped_storage().data_ptr()
    assert len({id(labels) for labels in shares.labels}) <= 55  # ten classes, one or two a client
    assert int(torch.cat(shares.train).bincount().max()) == 1
