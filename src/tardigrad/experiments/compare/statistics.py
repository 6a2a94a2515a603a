"""Statistics over few seeds: mean and standard deviation, and whether a difference could be chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import scipy

NO_SPREAD = 1e-12
"""Values that differ by less, relative to the largest, are the same but for rounding."""


def chance(lead: Sequence[float]) -> float | None:
    """Return how likely so large a lead is if there is none: a one-sided t-test over the seeds.

    None if that cannot be tested: with fewer than two seeds, or if a lead is not a finite number. If all
    seeds have the same lead, there is no spread for a t-test, and a sign test is made.

    >>> round(chance([0.1, 0.12, 0.11]), 4), chance([0.1, -0.1]), chance([0.1, 0.1, 0.1]), chance([0.5])
    (0.0014, 0.5, 0.125, None)
    """
    if len(lead) < 2 or not all(map(math.isfinite, lead)):
        return None
    if _all_the_same(lead):
        return 0.5 ** len(lead) if statistics.fmean(lead) > 0 else 1.0
    return float(scipy.stats.ttest_1samp(lead, 0.0, alternative="greater").pvalue)


def _all_the_same(values: Sequence[float]) -> bool:
    return statistics.stdev(values) <= NO_SPREAD * max(map(abs, values))


@dataclass(frozen=True)
class MeanAndDeviation:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float

    @staticmethod
    def of(values: Sequence[float]) -> MeanAndDeviation | None:
        """Return those of some values, or None if there are none.

        >>> MeanAndDeviation.of([1.0, 3.0])
        MeanAndDeviation(mean=2.0, sd=1.4142135623730951)
        """
        if not values:
            return None
        return MeanAndDeviation(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        )


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean (Student's t), or None for fewer than two values.

    >>> low, high = confidence_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * error
    mean = statistics.fmean(values)
    return mean - half, mean + half


@dataclass(frozen=True)
class Difference:
    """How two entries compare, seed by seed: the ratio of their costs."""

    ratio: float
    """Geometric mean over the seeds of the first's cost over the second's."""
    low: float | None
    high: float | None
    """Its 95 % confidence interval; None if every seed gives the same ratio, which leaves no spread to
    estimate it from."""
    p: float
    """How likely so large a difference is by chance: from the same t-test of the logarithms as the interval,
    which therefore excludes 1 if and only if this is below 0.05; or from a sign test if there is no interval.
    """
    seeds: int


def paired(
    first: Sequence[float],
    second: Sequence[float],
    first_steps: Sequence[float] | None = None,
    second_steps: Sequence[float] | None = None,
) -> Difference | None:
    """Compare costs of the same seeds; None with fewer than two, or if a cost is not positive and finite.

    A cost that is read off a grid of evaluations is known only to the distance from the evaluation before:
    the steps. Such a cost has a standard uncertainty of step / sqrt(12), which is added to the spread over
    the seeds. Without it, two seeds that fall on the same points of a coarse grid would seem to be exact.

    >>> difference = paired([10, 12, 11], [20, 26, 21])
    >>> round(difference.ratio, 3), difference.p < 0.01
    (0.494, True)
    >>> coarse = paired([100, 150], [200, 301], [50, 50], [50, 50])
    >>> coarse.low < 0.2, coarse.high > 1, coarse.p > 0.05
    (True, True, True)
    """
    if len(first) != len(second) or len(first) < 2:
        return None
    if not all(math.isfinite(cost) and cost > 0 for cost in (*first, *second)):
        return None
    logs = [math.log(a / b) for a, b in zip(first, second)]
    mean, variance = statistics.fmean(logs), statistics.variance(logs)
    variance += _grid_variance(first, first_steps) + _grid_variance(second, second_steps)
    if _all_the_same(logs):
        by_sign = min(1.0, 2 * 0.5 ** len(logs)) if mean != 0 else 1.0
        return Difference(math.exp(mean), None, None, by_sign, len(logs))
    error = math.sqrt(variance / len(logs))
    half = float(scipy.stats.t.ppf(0.975, len(logs) - 1)) * error
    p = 2 * float(scipy.stats.t.sf(abs(mean) / error, len(logs) - 1))
    return Difference(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p, len(logs))


def _grid_variance(costs: Sequence[float], steps: Sequence[float] | None) -> float:
    """Return the mean variance of the costs' logarithms that is due to the grid they are read off."""
    if steps is None:
        return 0.0
    return statistics.fmean((step / cost) ** 2 / 12 for cost, step in zip(costs, steps, strict=True))
