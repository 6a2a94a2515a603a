"""A lower bound on epsilon from one run: "Privacy Auditing with One (1) Training Run" (Steinke, Nasr,
Jagielski).

Some clients are canaries: a fair coin decides whether each is included or excluded (its contributions are
zeros). From what the run released, the auditor guesses the coin of each canary, or abstains. If the mechanism
is (epsilon, delta) private, guesses cannot be right much more often than with probability e^epsilon / (1 +
e^epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from tardigrad.errors import ConfigError

SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of the canaries that are guessed."""


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of so many correct guesses under (epsilon, delta) privacy.

    This is Theorem 5.2. With f(v) = P[Binomial(guesses, e^epsilon / (1 + e^epsilon)) >= v] the bound is
    f(v) + 2 canaries delta max over i of (f(v - i) - f(v)) / i.
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(scipy.stats.binom.sf(correct - 1, guesses, right))
    slope = 0.0
    if correct > 0:
        below = np.cumsum(
            scipy.stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)
        )  # f(v - i) - f(v)
        slope = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * slope)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return a lower bound on epsilon (at delta) with this confidence.

    The number of guesses must be fixed beforehand.

    >>> epsilon_lower_bound(canaries=1000, guesses=100, correct=50, delta=1e-7)
    0.0
    >>> round(epsilon_lower_bound(canaries=1000, guesses=100, correct=100, delta=0.0), 3)
    3.493
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ConfigError(
            f"audit: {correct} correct of {guesses} guesses for {canaries} canaries; "
            "correct is at most guesses, and guesses at most canaries"
        )
    if not 0 < confidence < 1:
        raise ConfigError(f"audit: confidence = {confidence:g}: it must lie between 0 and 1")

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def audit_scores(
    scores: Sequence[float],
    included: Sequence[bool],
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> float:
    """Return the lower bound on epsilon that follows from one score for each canary.

    A score is positive where the canary seems to be included and negative where it seems to be excluded, and
    the farther from 0, the surer (as a log-likelihood ratio). The surest canaries are guessed by their signs.
    The best number of guesses depends on the mechanism, so several shares are tried. Each gets an equal part
    of the error probability, so the best bound is valid.
    """
    values, truth = np.asarray(scores, dtype=float), np.asarray(included, dtype=bool)
    if len(values) != len(truth) or len(values) < 2:
        raise ConfigError(
            f"audit: {len(values)} scores for {len(truth)} canaries; give two or more, one each"
        )
    if np.isnan(values).any():
        raise ConfigError("audit: a score is not a number; did the run diverge?")
    right = ((values > 0) == truth)[np.argsort(-np.abs(values), kind="stable")]
    each = 1 - (1 - confidence) / len(shares)
    return max(
        epsilon_lower_bound(len(values), guesses, int(right[:guesses].sum()), delta, each)
        for guesses in _guesses(len(values), shares)
    )


def largest_bound(
    canaries: int, delta: float, confidence: float = 0.95, shares: Sequence[float] = SHARES
) -> float:
    """Return the bound of `audit_scores` if every guess is right: the largest for so many canaries.

    >>> round(largest_bound(canaries=1000, delta=0.0), 3)
    5.378
    """
    each = 1 - (1 - confidence) / len(shares)
    return max(
        epsilon_lower_bound(canaries, guesses, guesses, delta, each) for guesses in _guesses(canaries, shares)
    )


def _guesses(canaries: int, shares: Sequence[float]) -> list[int]:
    """Return the number of guesses for each share."""
    return [max(1, int(share * canaries)) for share in shares]
