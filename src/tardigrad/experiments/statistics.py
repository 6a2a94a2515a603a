"""Honest numbers over few seeds: mean and standard deviation, and whether a difference could be chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import scipy


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """Of some values; nothing, if there are none.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, sd=1.4142135623730951)
        """
        if not values:
            return None
        return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Difference:
    """How two entries compare, seed by seed: the ratio of their costs."""

    ratio: float
    """Geometric mean over the seeds of the first's cost over the second's."""
    low: float
    high: float
    """Its 95 % confidence interval."""
    p: float
    """How likely so large a difference is by chance (paired t-test of the logarithms)."""
    seeds: int

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def paired(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare costs of the same seeds; nothing with fewer than two, or without a difference to judge.

    >>> difference = paired([10, 12, 11], [20, 26, 21])
    >>> round(difference.ratio, 3), difference.p < 0.01
    (0.494, True)
    """
    if len(first) != len(second) or len(first) < 2 or min(*first, *second) <= 0:
        return None
    logs = [math.log(a / b) for a, b in zip(first, second)]
    mean, sd = statistics.fmean(logs), statistics.stdev(logs)
    if sd == 0:  # every seed says the same: chance has nothing to do with it
        return Difference(
            math.exp(mean), math.exp(mean), math.exp(mean), 1.0 if mean == 0 else 0.0, len(logs)
        )
    half = float(scipy.stats.t.ppf(0.975, len(logs) - 1)) * sd / math.sqrt(len(logs))
    p = float(scipy.stats.ttest_1samp(logs, 0.0).pvalue)
    return Difference(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p, len(logs))
