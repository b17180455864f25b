"""Whole-batch augmentation against the loop over samples that it replaces."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.data import AUGMENT, crop_flip
from nestling.errors import DataError


def every_outcome(image, pad):
    """All crops and mirrored crops of one image, each by plain slicing."""
    _, height, width = image.shape
    padded = F.pad(image, [pad] * 4)
    crops = [
        padded[:, top : top + height, left : left + width] for top in range(2 * pad + 1) for left in range(2 * pad + 1)
    ]
    return crops + [crop.flip(-1) for crop in crops]


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    pad=st.integers(0, 3),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    seed=st.integers(0, 99),
    channels_last=st.booleans(),
)
def test_every_image_becomes_one_of_its_own_crops(size, pad, dtype, seed, channels_last):
    batch = torch.randint(1, 256, size, generator=torch.Generator().manual_seed(seed)).to(dtype)
    given_batch = batch.contiguous(memory_format=torch.channels_last) if channels_last else batch
    crops = crop_flip(given_batch, torch.Generator().manual_seed(seed), pad=pad)
    assert crops.dtype == dtype
    assert crops.shape == batch.shape
    for image, result in zip(batch, crops, strict=True):
        assert any(torch.equal(result, outcome) for outcome in every_outcome(image, pad))


def test_all_outcomes_are_equally_likely():
    pad, times = 1, 18_000
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 3, 3)
    crops = crop_flip(image.expand(times, 1, 3, 3), torch.Generator().manual_seed(0), pad=pad)
    outcomes = torch.stack(every_outcome(image, pad)).view(18, -1)
    hits = (crops.view(times, 1, -1) == outcomes).all(-1)
    assert bool((hits.sum(1) == 1).all())  # the 18 outcomes of this image differ
    shares = hits.sum(0).double()
    chi_squared = ((shares - times / 18) ** 2 / (times / 18)).sum()
    assert chi_squared < 40.8  # the 0.1 % point of chi-squared with 17 degrees of freedom


def test_same_generator_same_result_and_global_randomness_is_untouched():
    batch = torch.randint(0, 256, (8, 3, 6, 6), dtype=torch.uint8)
    state = torch.get_rng_state()
    first, second = (AUGMENT["crop-flip"](batch, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert AUGMENT["none"](batch, torch.Generator()) is batch
    assert crop_flip(batch[:0], torch.Generator()).shape == (0, 3, 6, 6)


def test_refuses():
    with pytest.raises(DataError, match="takes images"):
        crop_flip(torch.zeros(2, 9, 128), torch.Generator())
    with pytest.raises(DataError, match="cannot pad by -1"):
        crop_flip(torch.zeros(2, 1, 4, 4), torch.Generator(), pad=-1)
