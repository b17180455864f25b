"""What a `Dataset` refuses, and what `ready` makes of a batch."""

import pytest
import torch
import torch.nn.functional as F

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
    ("changes", "message"),
    [
        ({"classes": 0}, "number of classes, at least 1, not 0"),
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
        ({"resize": -1}, "cannot be resized to -1 pixels"),
        (
            {"inputs": PIXELS[:, :, 0], "test_inputs": PIXELS[:, :, 0], "resize": 8},
            r"only images .* not samples of shape \(3, 2\)",
        ),
        ({"mean": (0.5,), "std": (1.0,)}, "each of the 3 channels, not 1 and 1"),
        ({"mean": (0.5,) * 3}, "not 3 and 0"),
        ({"mean": (0.5,) * 3, "std": (1.0, 0.0, 1.0)}, "std positive"),
        ({"inputs": torch.full((2, 3, 2, 2), torch.nan), "test_inputs": PIXELS.float()}, "not finite"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(DataError, match=message):
        make(**changes)


def test_ready_refuses_other_shapes_and_kinds():
    with pytest.raises(DataError, match=r"samples of shape \(3, 2, 2\), not \(3, 4, 4\)"):
        make().ready(torch.zeros(1, 3, 4, 4))
    with pytest.raises(DataError, match=r"uint8 or floating point, not torch.int64"):
        make().ready(PIXELS.long())


def test_images_grow_by_bilinear_interpolation_between_pixel_centres():
    row = torch.tensor([0, 255], dtype=torch.uint8).expand(2, 3, 2, 2).contiguous()
    data = make(inputs=row, test_inputs=row, resize=4)
    assert data.shape == (3, 4, 4)
    assert torch.allclose(data.ready(row), torch.tensor([0, 0.25, 0.75, 1]).expand(2, 3, 4, 4))


def test_images_that_shrink_are_antialiased():
    """A triangle of twice the width: the first of two pixels sees three of four, weighted 3, 3 and 1."""
    row = torch.tensor([7.0, 14.0, 28.0, 70.0]).expand(2, 3, 4, 4).contiguous()
    data = make(inputs=row, test_inputs=row, resize=2)
    assert torch.allclose(data.ready(row), torch.tensor([(21 + 42 + 28) / 7, (14 + 84 + 210) / 7]).expand(2, 3, 2, 2))


@pytest.mark.parametrize("side", [1, 2, 3, 5, 224])
def test_resized_images_are_those_of_torch_and_normalised(side):
    pixels = torch.randint(256, (2, 3, 2, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(side))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    data = make(inputs=pixels, test_inputs=pixels, mean=mean, std=std, resize=side)
    expected = F.interpolate(pixels.double() / 255, size=(side, side), mode="bilinear", antialias=True)
    expected = (expected - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert data.ready(pixels).dtype == torch.float32
    torch.testing.assert_close(data.ready(pixels).double(), expected, rtol=0, atol=1e-5)
    with pytest.raises(DataError, match=r"samples of shape \(3, 2, 3\), not"):
        data.ready(data.ready(pixels[:, :, :, :2]))


def test_images_of_the_right_size_are_left_alone():
    assert torch.equal(make(resize=2).ready(PIXELS), make().ready(PIXELS))
