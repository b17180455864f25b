"""ε against computations of our own, from the papers' formulas."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest

from nestling.errors import MethodError
from nestling.fleet import Fleet, Participation, parse_mix
from nestling.methods.privacy.accounting import Accountant, _spent_by_a_round

pytest.importorskip("dp_accounting")
ORDERS = range(2, 33)


def epsilon_of(rdp, delta):
    """Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy, 2020, Proposition 12."""
    return min(rdp(order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order in ORDERS)


def gaussian(sigma):
    return lambda order: order / (2 * sigma**2)


@cache
def poisson(q, sigma, order):
    """Mironov, Talwar, Zhang, 2019, §3.3: the Rényi divergence at a whole order."""
    terms = (
        mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / (2 * sigma**2))
        for k in range(order + 1)
    )
    return float(mpmath.log(mpmath.fsum(terms)) / (order - 1))


@cache
def divergence(sigma, power):
    """E|p/q − 1|^power, for even powers; its terms cancel."""
    mpmath.mp.dps = 80
    return mpmath.fsum(
        (-1) ** (power - i) * mpmath.binomial(power, i) * mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * sigma**2))
        for i in range(power + 1)
    )


@cache
def without_replacement(q, sigma, order):
    """Wang, Balle, Kasiviswanathan, 2019, Theorem 27, for the Gaussian mechanism."""
    total = mpmath.mpf(1)
    for j in range(2, order + 1):
        general = 2 * mpmath.exp(mpmath.mpf(j * (j - 1)) / (2 * sigma**2))
        if j == 2:
            term = min(4 * (mpmath.exp(mpmath.mpf(1) / sigma**2) - 1), general)
        else:
            low, high = divergence(sigma, 2 * (j // 2)), divergence(sigma, 2 * ((j + 1) // 2))
            term = min(4 * mpmath.sqrt(low * high), general)
        total += mpmath.mpf(q) ** j * mpmath.binomial(order, j) * term
    return float(mpmath.log(total) / (order - 1))


def exact_gaussian(sigma, delta):
    """Balle, Wang, Improving the Gaussian Mechanism, ICML 2018, Theorem 8, solved by bisection."""

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        here = phi(0.5 / sigma - middle * sigma) - math.exp(middle) * phi(-0.5 / sigma - middle * sigma)
        low, high = (middle, high) if here > delta else (low, middle)
    return high


def test_everybody_in_every_round():
    accountant = Accountant(1000, 1000, poisson=False, adjacency="add-or-remove-one")
    epsilon = accountant.epsilon(noise=20.0, rounds=50, delta=1e-5)
    assert epsilon == pytest.approx(epsilon_of(lambda order: 50 * gaussian(20.0)(order), 1e-5), rel=1e-3)
    exact = exact_gaussian(20.0 / math.sqrt(50), 1e-5)
    assert exact < epsilon < 1.1 * exact


def test_every_client_by_itself():
    accountant = Accountant(1000, 20, poisson=True, adjacency="add-or-remove-one")
    epsilon = accountant.epsilon(noise=1.1, rounds=200, delta=1e-5)
    assert epsilon == pytest.approx(epsilon_of(lambda order: 200 * poisson(0.02, 1.1, order), 1e-5), rel=1e-2)


def test_every_client_by_itself_as_an_integral():
    """By Simpson's rule (Mironov, Talwar, Zhang, 2019, §3.2); between whole orders, the library has an upper bound."""
    q, sigma = 0.02, 1.1
    x, step = np.linspace(-40.0, 60.0, 200_001, retstep=True)
    log_outside = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    simpson = np.ones(len(x))
    simpson[1:-1:2], simpson[2:-1:2] = 4, 2
    orders, spent = _spent_by_a_round(Accountant(1000, 20, poisson=True, adjacency="add-or-remove-one"), sigma)
    for order in (1.1, 1.5, 2, 3.3, 9.7, 16, 32):
        total = step / 3 * (simpson * np.exp(log_outside + order * log_ratio)).sum()
        (place,) = np.flatnonzero(np.isclose(orders, order))
        exact = math.log(total) / (order - 1)
        assert exact * (1 - 1e-9) <= spent[place] <= exact * (1 + 1e-9 if isinstance(order, int) else 1.15)


@pytest.mark.parametrize("adjacency", ["replace-one", "replace-one within a level"])
def test_as_many_clients_in_every_round(adjacency):
    """A replaced client moves the sum by twice the clip: the noise counts half."""
    accountant = Accountant(1000, 20, poisson=False, adjacency=adjacency)
    epsilon = accountant.epsilon(noise=4.0, rounds=200, delta=1e-5)
    wanted = epsilon_of(lambda order: 200 * without_replacement(0.02, 2.0, order), 1e-5)
    assert epsilon == pytest.approx(wanted, rel=1e-2)


def test_the_adjacency_follows_from_the_sampling():
    def adjacency(per_round, sampling, real=False):
        fleet = Fleet(20, per_round, parse_mix("a-c"), sampling=sampling)
        return Accountant.of(Participation.of(fleet), real).adjacency

    assert adjacency(5, "poisson") == adjacency(20, "fixed") == "add-or-remove-one"
    assert adjacency(5, "fixed") == "replace-one"
    assert adjacency(5, "fixed", real=True) == adjacency(20, "fixed", real=True) == "replace-one within a level"


@pytest.mark.parametrize("poisson_sampling", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_noise_for_a_target_is_just_enough(poisson_sampling):
    adjacency = "add-or-remove-one" if poisson_sampling else "replace-one"
    accountant = Accountant(500, 25, poisson_sampling, adjacency)
    noise = accountant.noise_for(8.0, rounds=30, delta=1e-4)
    assert 7.9 < accountant.epsilon(noise, 30, 1e-4) <= 8.0
    assert accountant.epsilon(noise * 0.99, 30, 1e-4) > 8.0


def test_no_rounds_no_noise_and_no_way():
    accountant = Accountant(10, 10, poisson=False, adjacency="add-or-remove-one")
    assert accountant.epsilon(1.0, 0, 1e-3) == 0
    assert accountant.epsilon(0.0, 1, 1e-3) == math.inf
    with pytest.raises(MethodError, match="no noise up to 1e"):
        accountant.noise_for(1e-9, 10, 1e-9)
