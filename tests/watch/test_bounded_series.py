"""Series of bounded length."""

from itertools import pairwise

import pytest

from tardigrad.watch.bounded_series import BoundedSeries


@pytest.mark.parametrize("limit", [1, 2, 5, 500])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000, 10_007])
def test_a_series_stays_short_and_has_the_first_and_the_last_point(limit, count):
    series = BoundedSeries[int](limit)
    for number in range(count):
        series.add(number)
    points = series.points()
    assert len(points) <= limit + 1
    assert points == sorted(set(points))
    if count:
        assert points[0] == 0
        assert points[-1] == count - 1
    gaps = {b - a for a, b in pairwise(points)}
    assert len(gaps) <= 2, "points are evenly spread, up to the last"
