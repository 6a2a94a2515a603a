"""When a run is over, and why."""

import pytest

import tardigrad as td

REACHED = {
    "trips": 10, "version": 5, "time": 2.5,
    "metrics": {"accuracy": 0.75}, "objection": "privacy budget",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "accuracy"),
        ({"metrics": {"accuracy": 0.74}}, "trips"),
        ({"metrics": {"accuracy": 0.74}, "trips": 9}, "steps"),
        ({"metrics": {"accuracy": 0.74}, "trips": 9, "version": 4}, "virtual_time"),
        ({"metrics": {"accuracy": 0.74}, "trips": 9, "version": 4, "time": 2.0}, "privacy budget"),
        ({"metrics": {"accuracy": 0.74}, "trips": 9, "version": 4, "time": 2.0, "objection": None}, None),
    ],
)
def test_first_reason_that_holds_is_given(changed, reason):
    stop = td.Stop(trips=10, steps=5, virtual_time=2.0, accuracy=0.75)
    assert stop.reason(**REACHED | changed) == reason


@pytest.mark.parametrize("limit", ["trips", "steps", "virtual_time"])
def test_limit_that_is_not_set_never_ends_a_run(limit):
    stop = td.Stop(**{limit: 10**6})
    assert stop.reason(**REACHED | {"objection": None}) is None
