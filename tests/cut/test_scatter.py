"""Adding rows at scattered places: the compiled loop and PyTorch agree bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.cut import scatter


def sums(places, values, weights, rows, width):
    totals = torch.zeros(rows, width, dtype=torch.float64)
    counts = torch.zeros(rows, dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        scatter.scatter(totals, counts, places, value, weight)
    return totals, counts


@settings(deadline=None)  # the first call compiles
@given(
    outer=st.sets(st.integers(0, 7), min_size=1),
    inner=st.sets(st.integers(0, 7), min_size=1),
    width=st.sampled_from([1, 2, 9, 25]),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_with_and_without_numba(outer, inner, width, weights, dtype, seed):
    pytest.importorskip("numba")
    draw = torch.Generator().manual_seed(seed)
    places = np.array(sorted(outer)) * 8, np.array(sorted(inner))
    values = [torch.randn(len(outer) * len(inner), width, generator=draw, dtype=dtype) for _ in weights]
    quick = sums(places, values, weights, 64, width)
    kernel = scatter._kernel
    try:
        scatter._kernel = lambda: None
        plain = sums(places, values, weights, 64, width)
    finally:
        scatter._kernel = kernel
    assert torch.equal(quick[0], plain[0])
    assert torch.equal(quick[1], plain[1])
    naive = torch.zeros(64, width, dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        for row, place in enumerate(a + b for a in places[0] for b in places[1]):
            naive[place] += weight * value[row].double()
    assert torch.equal(quick[0], naive)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_by_pytorch(dtype):
    totals, _ = sums((np.array([0]), np.array([1, 3])), [torch.ones(2, 3, dtype=dtype)], [2.0], 4, 3)
    assert totals[:, 0].tolist() == [0, 2, 0, 2]
