"""Datasets from the caller's arrays and from Hugging Face's `datasets`."""

import numpy as np
import pytest
import torch

from nestling.data import from_arrays, from_hf
from nestling.errors import DataError


def test_arrays_tensors_and_lists_alike():
    x, y = np.random.default_rng(0).normal(size=(6, 2)), [0, 1, 2, 0, 1, 2]
    data = from_arrays(x, y, (torch.zeros(2, 2), np.array([3, 0], np.uint8)), users=[4, 4, 4, 5, 5, 5])
    assert data.inputs.dtype == torch.float32
    assert torch.equal(data.inputs, torch.from_numpy(x).float())
    assert data.targets.tolist() == y
    assert data.classes == 4
    assert data.users.tolist() == [4, 4, 4, 5, 5, 5]
    frozen = np.zeros((2, 1), np.uint8)
    frozen.flags.writeable = False
    assert from_arrays(frozen, [0, 0]).inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 3), np.int64), [0, 1]), "samples are torch.int64: make them uint8"),
        ((np.zeros((2, 3)), [0.0, 1.0]), "labels are torch.float64: make them whole numbers"),
        ((np.zeros((2, 3)), ["cat", "dog"]), "labels are not numbers in a regular array"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "samples are not numbers in a regular array"),
        ((np.zeros((2, 3)), [0, 1], (np.zeros((1, 3)), [True])), "test labels are torch.bool"),
        ((np.zeros((2, 3)), [0, 1, 1]), "one for every sample"),
        ((np.zeros((0, 3)), []), "labels are torch.float64"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(DataError, match=message):
        from_arrays(*arguments)


class LazyColumn:
    """What a column of `datasets` 4 is until it is sliced."""

    def __init__(self, values):
        self.values = values

    def __getitem__(self, key):
        return self.values[key]


class ClassLabel:
    num_classes = 7


class StandIn:
    """The part of ``datasets.Dataset`` that is used; the package itself is not among the development dependencies."""

    def __init__(self, columns, features=None, lazy=False, formatted=None):
        self.columns, self.features, self.lazy, self.formatted = columns, features, lazy, formatted

    @property
    def column_names(self):
        return list(self.columns)

    def with_format(self, kind):
        return StandIn(self.columns, self.features, self.lazy, kind)

    def __getitem__(self, column):
        assert self.formatted == "numpy"
        values = self.columns[column]
        return LazyColumn(values) if self.lazy else values


@pytest.mark.parametrize("lazy", [False, True])
def test_hugging_face_images_labels_and_users(lazy):
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    train = {"image": images, "label": np.array([0, 1, 2, 0]), "writer": np.array(["b", "a", "b", "c"])}
    test = {"image": list(images[:2]), "label": np.array([1, 1]), "writer": np.array(["c", "a"])}
    dataset = from_hf(
        {"train": StandIn(train, {"label": ClassLabel()}, lazy), "test": StandIn(test, None, lazy)}, user="writer"
    )
    assert dataset.shape == (3, 5, 6)
    assert torch.equal(dataset.inputs, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert dataset.classes == 7
    assert dataset.users.tolist() == [1, 0, 1, 2]
    assert dataset.test_users.tolist() == [2, 0]


def test_hugging_face_single_split_grey_images_and_features():
    grey = StandIn({"image": np.zeros((2, 5, 6), np.uint8), "label": np.array([0, 1])})
    assert from_hf(grey).shape == (1, 5, 6)
    assert len(from_hf(grey).test_inputs) == 0
    rows = StandIn({"x": np.zeros((2, 9)), "y": np.array([0, 1]), "who": np.array([5, 5])})
    dataset = from_hf({"train": rows}, input="x", target="y", user="who")
    assert dataset.shape == (9,)
    assert dataset.users.tolist() == [0, 0]
    assert dataset.test_users is None


def test_hugging_face_refuses():
    table = StandIn({"image": [np.zeros((2, 2), np.uint8), np.zeros((3, 2), np.uint8)], "label": np.array([0, 1])})
    with pytest.raises(DataError, match="no column 'labels'; did you mean 'label'"):
        from_hf(table, target="labels")
    with pytest.raises(DataError, match="no split 'train': there are 'validation'"):
        from_hf({"validation": table})
    with pytest.raises(DataError, match="differ in shape"):
        from_hf(table)
