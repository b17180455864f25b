"""Fixed-point numbers: sums are exact to the stated step, never overflow, and what is out of range is counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import SecAggError
from nestling.secagg.fixed_point import FixedPoint


@settings(max_examples=40)
@given(
    rows=st.lists(st.lists(st.floats(-4, 4), min_size=3, max_size=3), min_size=1, max_size=40),
    bits=st.sampled_from([16, 32, 64]),
    spare=st.integers(0, 5),
)
def test_a_sum_of_residues_is_the_sum_of_values(rows, bits, spare):
    code = FixedPoint(4.0, len(rows) + spare, bits)
    total = sum((code.encode(np.array(row))[0] for row in rows[1:]), code.encode(np.array(rows[0]))[0])
    wrong = np.abs(code.decode(total) - np.sum(rows, 0)).max()
    assert wrong <= len(rows) * (code.step / 2 + 1e-14)
    if bits >= 32:
        assert wrong <= 1e-5


def test_the_largest_sums_do_not_overflow():
    for bits in (16, 32, 64):
        for sign in (-1.0, 1.0):
            code = FixedPoint(2.0, 7, bits)
            total = sum(code.encode(np.full(1, sign * 2.0))[0] for _ in range(7))
            assert code.decode(total)[0] == pytest.approx(sign * 14, abs=1e-9)


def test_what_is_out_of_range_is_clipped_and_counted():
    code = FixedPoint(0.5, 4)
    residues, clipped = code.encode(np.array([0.5, -0.5, 0.51, -9.0]))
    assert clipped == 2
    np.testing.assert_allclose(code.decode(residues), [0.5, -0.5, 0.5, -0.5], atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(SecAggError, match="not finite"):
        FixedPoint(1.0, 2).encode(np.array([value]))


@pytest.mark.parametrize(("range", "terms", "bits"), [(0.0, 2, 32), (1.0, 0, 32), (1.0, 2, 20), (1.0, 2**16, 16)])
def test_codes_that_cannot_be(range, terms, bits):
    with pytest.raises(SecAggError):
        FixedPoint(range, terms, bits)
