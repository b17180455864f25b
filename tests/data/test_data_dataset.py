"""What a `Dataset` refuses, and what `ready` makes of a batch."""

import pytest
import torch

from nestling.data import Dataset
from nestling.errors import DataError

PIXELS = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(2, 3, 2, 2)
LABELS = torch.tensor([0, 1])


def make(**changes):
    whole = {"name": "tiny", "inputs": PIXELS, "targets": LABELS, "test_inputs": PIXELS, "test_targets": LABELS}
    return Dataset(**(whole | {"classes": 2} | changes))


def test_ready_normalises_each_channel():
    data = make(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    expected = PIXELS.double() / 255
    for channel, (mean, std) in enumerate(zip(data.mean, data.std, strict=True)):
        expected[:, channel] = (expected[:, channel] - mean) / std
    assert data.ready(PIXELS).dtype == torch.float32
    assert torch.allclose(data.ready(PIXELS).double(), expected, atol=1e-6)


def test_ready_takes_floats_as_they_are_and_leaves_the_batch_alone():
    floats = torch.randn(5, 3, 2, 2)
    before = floats.clone()
    data = make(inputs=floats[:2], test_inputs=floats[:2], mean=(1.0, 1.0, 1.0), std=(2.0, 2.0, 2.0))
    assert torch.equal(data.ready(floats), (before - 1) / 2)
    assert torch.equal(floats, before)
    assert data.ready(floats.half()).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"classes": 0}, "at least 1 class, not 0"),
        ({"inputs": PIXELS[:0], "targets": LABELS[:0]}, "no training samples"),
        ({"inputs": PIXELS.long()}, "uint8 or float32 of shape"),
        ({"inputs": PIXELS[:, 0, 0, 0]}, "uint8 or float32 of shape"),
        ({"targets": LABELS.int()}, "training labels must be int64"),
        ({"test_targets": LABELS[:1]}, r"test labels must be int64 of shape \(2,\)"),
        ({"users": LABELS[:1]}, "training users must be int64"),
        ({"targets": torch.tensor([0, 2])}, "training label 2 is not one of the classes 0 to 1"),
        ({"test_targets": torch.tensor([0, -1])}, "test label -1"),
        ({"test_inputs": PIXELS.float()}, "test samples are torch.float32"),
        ({"test_inputs": PIXELS[:, :2]}, r"of shape \(2, 2, 2\), training samples"),
        ({"augment": "crop_flip"}, "did you mean 'crop-flip'"),
        ({"mean": (0.5,), "std": (1.0,)}, "each of the 3 channels, not 1 and 1"),
        ({"mean": (0.5,) * 3}, "not 3 and 0"),
        ({"mean": (0.5,) * 3, "std": (1.0, 0.0, 1.0)}, "std positive"),
        ({"inputs": torch.full((2, 3, 2, 2), torch.nan), "test_inputs": PIXELS.float()}, "not finite"),
    ],
)
def test_refuses(changes, said):
    with pytest.raises(DataError, match=said):
        make(**changes)


def test_ready_refuses_other_shapes_and_kinds():
    with pytest.raises(DataError, match=r"samples of shape \(3, 2, 2\), not \(3, 4, 4\)"):
        make().ready(torch.zeros(1, 3, 4, 4))
    with pytest.raises(DataError, match=r"uint8 or floating point, not torch.int64"):
        make().ready(PIXELS.long())
