"""Series of points that stay short however long a run is."""

from __future__ import annotations

from typing import Generic, TypeVar

Point = TypeVar("Point")


class BoundedSeries(Generic[Point]):
    """Keeps at most about `limit` points of a growing series, evenly spread, and always the last one.

    >>> series = BoundedSeries[int](4)
    >>> for number in range(11):
    ...     series.add(number)
    >>> series.points()
    [0, 4, 8, 10]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._every = 1
        self._kept: list[Point] = []
        self._last: list[Point] = []  # the newest point, unless it is kept
        self.count = 0
        """How many points were added."""

    def add(self, point: Point) -> None:
        """Append a point."""
        if self.count % self._every:
            self._last = [point]
        else:
            self._kept.append(point)
            self._last = []
            if len(self._kept) > self._limit:
                self._last = [] if len(self._kept) % 2 else [point]
                self._kept = self._kept[::2]
                self._every *= 2
        self.count += 1

    def points(self) -> list[Point]:
        """Return the points that are kept, in order."""
        return self._kept + self._last
