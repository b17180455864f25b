"""Best approximations of products: what NumPy computes from the whole matrix, in double precision."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.cut.low_rank import low_rank

LAWS = settings(deadline=None, derandomize=True, max_examples=60, database=None)
SIZES = st.integers(1, 9)


@st.composite
def factors(draw):
    """Some products side by side, and the matrix that is their sum."""
    rows, columns = draw(SIZES), draw(SIZES)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.lists(st.integers(0, 3), max_size=6))
    pairs = [(random.normal(size=(rows, rank)), random.normal(size=(rank, columns))) for rank in ranks]
    matrix = sum((left @ right for left, right in pairs), np.zeros((rows, columns)))
    left = torch.cat([torch.zeros(rows, 0), *(torch.from_numpy(left) for left, _ in pairs)], 1)
    right = torch.cat([torch.zeros(0, columns), *(torch.from_numpy(right) for _, right in pairs)])
    return left, right, matrix


def product(best):
    return ((best.left * best.values) @ best.right).numpy()


@LAWS
@given(factors(), st.integers(0, 4))
def test_a_rank_that_holds_all_factors_loses_nothing(case, more):
    left, right, matrix = case
    best = low_rank(left, right, len(right) + more)
    np.testing.assert_allclose(product(best), matrix, rtol=0, atol=1e-12 * max(1.0, np.linalg.norm(matrix)))
    assert best.lost == 0.0
    assert len(best.values) == np.linalg.matrix_rank(matrix)


@LAWS
@given(factors(), st.integers(1, 5))
def test_a_lower_rank_gives_the_best_approximation(case, rank):
    left, right, matrix = case
    best = low_rank(left, right, rank)
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    tolerance = 1e-10 * max(1.0, np.linalg.norm(matrix))
    np.testing.assert_allclose(product(best), (u * values)[:, :rank] @ v[:rank], rtol=0, atol=tolerance)
    np.testing.assert_allclose(best.lost, np.linalg.norm(values[rank:]), rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(matrix - product(best)), best.lost, rtol=0, atol=tolerance)
    np.testing.assert_allclose(best.norm, np.linalg.norm(matrix), rtol=0, atol=tolerance)


@LAWS
@given(factors())
def test_units_are_orthonormal_and_the_most_important_ones_are_first(case):
    best = low_rank(*case[:2], 9)
    one = torch.eye(len(best.values), dtype=torch.float64)
    torch.testing.assert_close(best.left.T @ best.left, one, rtol=0, atol=1e-10)
    torch.testing.assert_close(best.right @ best.right.T, one, rtol=0, atol=1e-10)
    assert (best.values > 0).all()
    assert (best.values.diff() <= 0).all()


def test_single_precision_is_added_up_in_double():
    assert low_rank(torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1), 1).norm == 1.0


def test_rounding_errors_are_no_units():
    random = torch.Generator().manual_seed(0)
    left, right = torch.randn(7, 2, generator=random), torch.randn(2, 5, generator=random)
    best = low_rank(torch.cat([left, left, left], 1), torch.cat([right, 0.3 * right, right]), 6)
    assert len(best.values) == 2
    nothing = low_rank(torch.zeros(7, 2), right, 2)
    assert (len(nothing.values), nothing.norm, nothing.lost) == (0, 0.0, 0.0)
