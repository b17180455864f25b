"""Sums of products: what NumPy computes from the whole matrices, in double precision."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.cut.low_rank import ProductSum

SIZES = st.integers(1, 9)
LAWS = settings(deadline=None, derandomize=True, max_examples=60, database=None)


@st.composite
def sums(draw, most=6):
    """The sum of a few products, as it is and as a matrix; few columns make the sum dense, many keep it stacked."""
    rows, columns = draw(SIZES), draw(SIZES) * draw(st.sampled_from([1, 8]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.lists(st.integers(0, 3), max_size=most))
    total, matrix = ProductSum(rows, columns), np.zeros((rows, columns))
    for rank in ranks:
        left, right = random.normal(size=(rows, rank)), random.normal(size=(rank, columns))
        total.add(torch.from_numpy(left), torch.from_numpy(right))
        matrix += left @ right
    return total, matrix, sum(ranks)


def product(best):
    return ((best.left * best.values) @ best.right).numpy()


@LAWS
@given(sums(), st.integers(0, 4))
def test_a_rank_that_holds_all_factors_loses_nothing(case, more):
    total, matrix, stacked = case
    best = total.best(stacked + more)
    np.testing.assert_allclose(product(best), matrix, rtol=0, atol=1e-12 * max(1.0, np.linalg.norm(matrix)))
    assert best.lost == 0.0
    assert len(best.values) == np.linalg.matrix_rank(matrix)


@LAWS
@given(sums(), st.integers(1, 5))
def test_a_lower_rank_gives_the_best_approximation(case, rank):
    total, matrix, _ = case
    best = total.best(rank)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    tolerance = 1e-10 * max(1.0, np.linalg.norm(matrix))
    np.testing.assert_allclose(product(best), (left * values)[:, :rank] @ right[:rank], rtol=0, atol=tolerance)
    np.testing.assert_allclose(best.lost, np.linalg.norm(values[rank:]), rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(matrix - product(best)), best.lost, rtol=0, atol=tolerance)
    np.testing.assert_allclose(best.norm, np.linalg.norm(matrix), rtol=0, atol=tolerance)


@LAWS
@given(sums())
def test_units_are_orthonormal_and_the_most_important_ones_are_first(case):
    best = case[0].best(9)
    one = torch.eye(len(best.values), dtype=torch.float64)
    torch.testing.assert_close(best.left.T @ best.left, one, rtol=0, atol=1e-10)
    torch.testing.assert_close(best.right @ best.right.T, one, rtol=0, atol=1e-10)
    assert (best.values > 0).all()
    assert (best.values.diff() <= 0).all()


def test_single_precision_is_added_up_in_double():
    total = ProductSum(1, 1)
    for value in (1e8, 1.0, -1e8):
        total.add(torch.tensor([[value]]), torch.tensor([[1.0]]))
    assert total.best(1).norm == 1.0


def test_factors_stay_side_by_side_only_while_they_are_smaller_than_the_sum():
    total = ProductSum(40, 60)
    for _ in range(200):
        total.add(torch.ones(40, 4), torch.ones(4, 60))
        held = [*total._left, *total._right, *([] if total._dense is None else [total._dense])]
        assert sum(part.numel() for part in held) <= 40 * 60
    assert total.best(1).lost == 0.0
    np.testing.assert_allclose(total.best(1).norm, 200 * 4 * (40 * 60) ** 0.5)
