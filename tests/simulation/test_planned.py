"""Rows of planned items: written as JSON and read again, also rows of earlier snapshots."""

import json

import pytest

from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Refusal, Rejected, Ticket
from tardigrad.errors import RunError
from tardigrad.simulation.planned import Joined, from_row, to_row

TICKET = Ticket(trip=4, client=7, version=2, time=0.5)
ACCEPTED = Accepted(TICKET, time=1.25, version=5, weight=0.5, mass=3.0, closes=True)
REJECTED = Rejected(TICKET, time=1.25, version=5, reason=Reason.STALE, closes=False)
GIVEN_UP = GivenUp(TICKET, time=1.25, closes=True)
ITEMS = [TICKET, Refusal(7, Reason.FULL, 1.0), ACCEPTED, REJECTED, GIVEN_UP, Joined(1.5, closes=True)]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_item_is_the_same_after_it_was_written_as_json(item):
    read = from_row(json.loads(json.dumps(to_row(item))))
    assert type(read) is type(item)
    assert read == item
    assert type(getattr(read, "ticket", None)) is type(getattr(item, "ticket", None))


@pytest.mark.parametrize(
    ("row", "item"),
    [
        (["Delivery", 4, 7, 0.5, 1.25, 2, 5, 3, 0.5, 3.0, True, None, 6, True], ACCEPTED),
        (["Delivery", 4, 7, 0.5, 1.25, 2, 5, 3, 0.0, 0.0, False, "too stale", None, False], REJECTED),
        (["GiveUp", [4, 7, 2, 0.5], 1.25, True], GIVEN_UP),
    ],
    ids=["accepted", "rejected", "given up"],
)
def test_row_of_an_earlier_snapshot_is_read(row, item):
    read = from_row(row)
    assert type(read) is type(item)
    assert read == item


def test_row_of_an_unknown_kind_is_refused():
    with pytest.raises(RunError, match="unknown kind, 'Departure'; start a new run"):
        from_row(["Departure", 1])
