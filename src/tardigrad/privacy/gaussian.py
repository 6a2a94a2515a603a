"""Exact accounting of the Gaussian mechanism: "Improving the Gaussian Mechanism for Differential Privacy"
(Balle, Wang).

Everything depends on mu = sensitivity / standard deviation of the noise. A run with correlated noise is one
Gaussian mechanism, whatever its number of steps.
"""

from __future__ import annotations

import math

import scipy

from tardigrad.errors import ConfigError

LARGEST = 1e9
"""The upper limit of searches for an epsilon, mu or noise multiplier."""
RELATIVE = 1e-13
"""The relative tolerance of root finding."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta at which the mechanism is (epsilon, delta) private (Theorem 8).

    delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu). It is computed with
    logarithms, because the two terms nearly cancel and e^epsilon may overflow.

    >>> round(gaussian_delta(mu=1.0, epsilon=1.0), 6)
    0.126937
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = float(scipy.special.log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at this delta.

    >>> round(gaussian_epsilon(mu=1 / 2.4490607, delta=1e-7), 6)
    2.0
    """
    check_delta(delta)
    if not mu >= 0:
        raise ConfigError(f"mu = {mu:g}: it is a sensitivity over a noise, so at least 0")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    return float(
        scipy.optimize.brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, rtol=RELATIVE)
    )


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta) private; the noise is sensitivity / mu.

    >>> round(1 / gaussian_mu(epsilon=2.0, delta=1e-7), 7)
    2.4490607
    """
    check_delta(delta)
    if not epsilon >= 0:
        raise ConfigError(f"epsilon = {epsilon:g}: it must be at least 0")
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2
    low = high
    while gaussian_delta(low, epsilon) > delta:
        low /= 2
    if low == high:
        return low
    return float(
        scipy.optimize.brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, low, high, rtol=RELATIVE)
    )


def check_delta(delta: float) -> None:
    """Raise a ConfigError if delta is not between 0 and 1."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta:g}: it must lie between 0 and 1, and well below 1 / clients")
