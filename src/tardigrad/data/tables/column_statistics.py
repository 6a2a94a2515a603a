"""Statistics of one client's columns, and their combination over clients without pooling rows.

Sums are exactly rounded (`math.fsum`), so that they do not depend on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tardigrad.core.setting import Setting


class Moments(Setting):
    """The count, mean and sum of squared differences from the mean (M2) of a column of numbers or dates."""

    kind: Literal["moments"] = "moments"
    count: NonNegativeInt = 0
    missing: NonNegativeInt = 0
    mean: float = 0.0
    m2: NonNegativeFloat = 0.0

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Return the moments of float64 values, where NaN is a missing one.

        >>> Moments.of(np.array([1.0, 3.0, np.nan]))
        Moments(kind='moments', count=2, missing=1, mean=2.0, m2=2.0)
        """
        known = values[~np.isnan(values)]
        if not len(known):
            return cls(missing=len(values))
        mean = math.fsum(known) / len(known)
        with np.errstate(over="ignore"):  # an infinite M2 is refused
            m2 = math.fsum((known - mean) ** 2)
        return cls(count=len(known), missing=len(values) - len(known), mean=mean, m2=m2)

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both together (Chan, Golub and LeVeque 1979).

        >>> Moments.of(np.array([1.0, 3.0])).plus(Moments.of(np.array([5.0])))
        Moments(kind='moments', count=3, missing=0, mean=3.0, m2=8.0)
        """
        count, missing = self.count + other.count, self.missing + other.missing
        if not self.count or not other.count:
            known = self if self.count else other
            return Moments(count=count, missing=missing, mean=known.mean, m2=known.m2)
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / count
        return Moments(count=count, missing=missing, mean=mean, m2=m2)

    @property
    def scale(self) -> float:
        """The standard deviation, or 1 if the values differ by no more than rounding."""
        if not self.count:
            return 1.0
        deviation = math.sqrt(self.m2 / self.count)
        return deviation if deviation > 1e-12 * abs(self.mean) else 1.0


class CategoryCounts(Setting):
    """How often each category occurs in a column."""

    kind: Literal["counts"] = "counts"
    counts: dict[str, NonNegativeInt] = Field(default_factory=dict)
    missing: NonNegativeInt = 0

    @classmethod
    def of(cls, values: np.ndarray) -> CategoryCounts:
        """Return the counts of texts, where an empty one is missing."""
        names, numbers = np.unique(values.astype(str), return_counts=True)
        counts = dict(zip(names.tolist(), numbers.tolist()))
        return cls(missing=counts.pop("", 0), counts=counts)

    def plus(self, other: CategoryCounts) -> CategoryCounts:
        """Return the counts of both together."""
        counts = dict(self.counts)
        for name, number in other.counts.items():
            counts[name] = counts.get(name, 0) + number
        return CategoryCounts(counts=counts, missing=self.missing + other.missing)


Statistics = Annotated[Moments | CategoryCounts, Field(discriminator="kind")]


class ClientStatistics(Setting):
    """The statistics of each column of one client, which is all that it tells in the first pass."""

    columns: dict[str, Statistics]

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray]) -> ClientStatistics:
        """Return the statistics of parsed columns: texts are categories, floats are numbers or dates."""
        return cls(
            columns={
                name: CategoryCounts.of(values) if values.dtype == object else Moments.of(values)
                for name, values in columns.items()
            }
        )

    def plus(self, other: ClientStatistics) -> ClientStatistics:
        """Return the statistics of both together."""
        together: dict[str, Moments | CategoryCounts] = {}
        for name, own in self.columns.items():
            more = other.columns[name]
            if isinstance(own, Moments):
                assert isinstance(more, Moments), name
                together[name] = own.plus(more)
            else:
                assert isinstance(more, CategoryCounts), name
                together[name] = own.plus(more)
        return ClientStatistics(columns=together)


def combine(clients: Iterable[ClientStatistics]) -> tuple[ClientStatistics, int, int]:
    """Return the statistics of all clients together, added in the given order; the number of clients; and the
    number of bytes that they would send, as JSON."""
    combined, count, size = None, 0, 0
    for statistics in clients:
        combined = statistics if combined is None else combined.plus(statistics)
        count += 1
        size += len(statistics.model_dump_json().encode())
    assert combined is not None, "there are clients"
    return combined, count, size
