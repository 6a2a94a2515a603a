"""Honest numbers over few seeds: mean and standard deviation, and whether a difference could be chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import scipy

NO_SPREAD = 1e-12
"""Values that differ by less, relative to the largest, are the same but for rounding."""


def chance(lead: Sequence[float]) -> float | None:
    """How likely so large a lead is if there is none: a one-sided t-test over the seeds.

    None where that cannot be tested: with fewer than two seeds, or with a lead that is not a finite number.
    Where all seeds give the same lead there is no spread for a t-test to go by, and a sign test is made.

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
        """Of some values; nothing, if there are none.

        >>> MeanAndDeviation.of([1.0, 3.0])
        MeanAndDeviation(mean=2.0, sd=1.4142135623730951)
        """
        if not values:
            return None
        return MeanAndDeviation(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        )


@dataclass(frozen=True)
class Difference:
    """How two entries compare, seed by seed: the ratio of their costs."""

    ratio: float
    """Geometric mean over the seeds of the first's cost over the second's."""
    low: float | None
    high: float | None
    """Its 95 % confidence interval; None where every seed gives the same ratio, which leaves no spread to
    estimate it from."""
    p: float
    """How likely so large a difference is by chance: a paired t-test of the logarithms, or a sign test where
    every seed gives the same ratio."""
    seeds: int

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def paired(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare costs of the same seeds; None with fewer than two, or where a cost is not positive and finite.

    >>> difference = paired([10, 12, 11], [20, 26, 21])
    >>> round(difference.ratio, 3), difference.p < 0.01
    (0.494, True)
    """
    if len(first) != len(second) or len(first) < 2:
        return None
    if not all(math.isfinite(cost) and cost > 0 for cost in (*first, *second)):
        return None
    logs = [math.log(a / b) for a, b in zip(first, second)]
    mean, sd = statistics.fmean(logs), statistics.stdev(logs)
    if _all_the_same(logs):
        p = min(1.0, 2 * 0.5 ** len(logs)) if mean != 0 else 1.0
        return Difference(math.exp(mean), None, None, p, len(logs))
    half = float(scipy.stats.t.ppf(0.975, len(logs) - 1)) * sd / math.sqrt(len(logs))
    p = float(scipy.stats.ttest_1samp(logs, 0.0).pvalue)
    return Difference(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p, len(logs))
