"""Statistics of clients, combined, equal those of all rows together."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardigrad.data.tables.column_statistics import CategoryCounts, ClientStatistics, Moments, combine

NUMBERS = st.one_of(
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.integers(-5, 5).map(float),
    st.floats(1e9, 1e9 + 1),  # the variance is small beside the square of the mean
    st.just(math.nan),
)


def pooled(values):
    """Mean, M2 in exact arithmetic, and counts."""
    known = [Fraction(value) for value in values if not math.isnan(value)]
    if not known:
        return 0, 0, 0, len(values)
    mean = sum(known) / len(known)
    return len(known), mean, sum((value - mean) ** 2 for value in known), len(values) - len(known)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(NUMBERS, max_size=12), min_size=1, max_size=8))
def test_combined_moments_are_those_of_all_rows(clients):
    combined, count, _ = combine(
        ClientStatistics.of({"x": np.array(values, dtype=np.float64)}) for values in clients
    )
    found = combined.columns["x"]
    known, mean, m2, missing = pooled([value for values in clients for value in values])
    assert (count, found.count, found.missing) == (len(clients), known, missing)
    if known:
        largest = max(abs(value) for values in clients for value in values if not math.isnan(value))
        assert abs(Fraction(found.mean) - mean) <= Fraction(1e-14) * Fraction(largest)
        # what rounding of the values themselves does to M2: eps * largest * sqrt(n * M2)
        rounding = (
            1e-14 * (float(m2) + largest * math.sqrt(known * float(m2))) + (1e-15 * largest) ** 2 * known
        )
        assert abs(found.m2 - float(m2)) <= rounding


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=9), min_size=1, max_size=6)
)
def test_one_client_with_all_rows_has_the_exact_mean(clients):
    values = [value for rows in clients for value in rows]
    assert Moments.of(np.array(values)).mean == float(sum(map(Fraction, values)) / len(values))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["", "a", "b", "ä", "1"]), max_size=9), min_size=1, max_size=6))
def test_combined_category_counts_are_those_of_all_rows(clients):
    combined, _, _ = combine(ClientStatistics.of({"x": np.array(rows, dtype=object)}) for rows in clients)
    expected = Counter(value for rows in clients for value in rows)
    missing = expected.pop("", 0)
    found = combined.columns["x"]
    assert isinstance(found, CategoryCounts)
    assert (found.missing, found.counts) == (missing, dict(expected))


def test_variance_survives_a_large_mean():
    values = np.array([1e9 + x for x in (4, 7, 13, 16)])
    moments = Moments.of(values[:2]).plus(Moments.of(values[2:]))
    assert moments.m2 / moments.count == 22.5


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, 0.0, -3.3])
def test_constant_column_is_not_scaled(value):
    moments, _, _ = combine(ClientStatistics.of({"x": np.full(n, value)}) for n in (3, 7, 11))
    assert moments.columns["x"].scale == 1.0


def test_bytes_are_those_of_the_json_that_clients_would_send():
    clients = [ClientStatistics.of({"x": np.array([1.0, 2.0])}), ClientStatistics.of({"x": np.array([3.0])})]
    _, count, size = combine(clients)
    assert count == 2
    assert size == sum(len(client.model_dump_json()) for client in clients)
