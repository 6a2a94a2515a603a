"""The lower bound of an audit: zero for random guesses, and never above the true epsilon."""

import math

import numpy as np
import pytest

from tardigrad.errors import ConfigError
from tardigrad.privacy.audit import audit_scores, epsilon_lower_bound, largest_bound, p_value
from tardigrad.privacy.gaussian import gaussian_epsilon

DELTA = 1e-5


def test_random_guesses_give_a_bound_of_zero():
    assert epsilon_lower_bound(1000, 1000, 500, DELTA) == 0
    assert epsilon_lower_bound(1000, 1000, 515, DELTA) == 0
    assert epsilon_lower_bound(1000, 0, 0, DELTA) == 0


def test_perfect_guesses_give_a_large_bound():
    # All of r right has probability (1 + e^-epsilon)^-r.
    exact = -math.log(0.05 ** (-1 / 1000) - 1)
    assert epsilon_lower_bound(1000, 1000, 1000, 0.0) == pytest.approx(exact, abs=1e-6)
    assert 5.5 < epsilon_lower_bound(1000, 1000, 1000, DELTA) < exact


def test_the_bound_is_where_the_p_value_meets_the_confidence():
    bound = epsilon_lower_bound(500, 200, 150, DELTA, confidence=0.9)
    assert p_value(500, 200, 150, bound, DELTA) == pytest.approx(0.1, abs=1e-6)


def test_p_value_by_summing_the_definition():
    def f(v, r, q):
        return sum(math.comb(r, j) * q**j * (1 - q) ** (r - j) for j in range(max(v, 0), r + 1))

    m, r, v, epsilon, delta = 40, 12, 9, 0.7, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    steepest = max((f(v - i, r, q) - f(v, r, q)) / i for i in range(1, m + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(f(v, r, q) + 2 * m * delta * steepest)


def test_bound_is_monotone():
    def bound(correct=80, delta=DELTA, confidence=0.95):
        return epsilon_lower_bound(1000, 100, correct, delta, confidence)

    assert bound(correct=70) < bound(correct=80) < bound(correct=90)
    assert bound(delta=1e-4) < bound(delta=1e-6)
    assert bound(confidence=0.99) < bound(confidence=0.9)


def scores(mu, seed, canaries=1000):
    generator = np.random.default_rng(seed)
    included = generator.random(canaries) < 0.5
    return mu * (included - 0.5) + generator.normal(size=canaries), included


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_the_bound_of_a_gaussian_mechanism_is_below_its_epsilon(mu):
    exact = gaussian_epsilon(mu, DELTA)
    bounds = [audit_scores(*scores(mu, seed), DELTA) for seed in range(20)]
    assert max(bounds) <= exact
    if mu >= 1:
        assert min(bounds) > 0.15 * exact  # and it does find something


def test_bound_exceeds_the_claim_of_a_mechanism_without_noise():
    claimed = gaussian_epsilon(0.2, DELTA)  # what the accountant says; the noise was never added
    values, included = scores(0.2, 0)
    assert audit_scores(included - 0.5 + 1e-6 * values, included, DELTA) > 4 > claimed


@pytest.mark.parametrize(("canaries", "delta"), [(2, 0.0), (37, 1e-5), (1000, 1e-6), (1000, 1e-3)])
def test_largest_bound_is_that_of_correct_guesses(canaries, delta):
    included = np.random.default_rng(5).random(canaries) < 0.5  # not half of them
    found = audit_scores(included - 0.5, included, delta)
    assert found == largest_bound(canaries, delta)
    values, included = scores(3.0, 0, canaries)
    assert audit_scores(values, included, delta) <= largest_bound(canaries, delta)


def test_few_canaries_and_a_large_delta_have_no_power():
    assert largest_bound(100, 1e-7) < 3.1 < largest_bound(1000, 1e-7) < 5.4
    assert largest_bound(1000, 1e-3) < 2 < largest_bound(1000, 1e-5)


def test_confidence_is_kept_when_there_is_nothing_to_find():
    found = [audit_scores(*scores(0.0, seed, canaries=100), DELTA, confidence=0.8) > 0 for seed in range(300)]
    assert np.mean(found) <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 300)


def test_a_few_sure_guesses_are_enough():
    # Most canaries tell nothing, some tell all: guessing all would find little.
    generator = np.random.default_rng(0)
    included = generator.random(1000) < 0.5
    values = generator.normal(size=1000)
    values[:50] = np.where(included[:50], 100.0, -100.0)
    assert audit_scores(values, included, DELTA) > 1.5
    assert audit_scores(values, included, DELTA, shares=[1.0]) < 0.5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: epsilon_lower_bound(10, 20, 5, DELTA), "20 guesses for 10 canaries"),
        (lambda: epsilon_lower_bound(10, 5, 6, DELTA), "6 correct of 5"),
        (lambda: epsilon_lower_bound(10, 5, 5, DELTA, confidence=1.0), "confidence = 1"),
        (lambda: audit_scores([1.0, 2.0, 3.0], [True, False], DELTA), "3 scores for 2 canaries"),
        (lambda: audit_scores([1.0, math.nan], [True, False], DELTA), "not a number"),
    ],
)
def test_invalid_values_are_refused(call, said):
    with pytest.raises(ConfigError, match=said):
        call()
