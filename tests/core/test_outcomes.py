"""The outcomes of bookkeeping: what they derive from their fields."""

import pytest

from tardigrad.core.outcomes import Accepted, Reason, Rejected, Ticket

TICKET = Ticket(trip=4, client="ann", version=2, time=0.5)
ACCEPTED = Accepted(TICKET, time=1.25, version=5, weight=0.5, mass=1.0, closes=True)
REJECTED = Rejected(TICKET, time=1.25, version=5, reason=Reason.LATE, closes=False)


@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED], ids=["accepted", "rejected"])
def test_outcome_names_trip_client_and_staleness(outcome):
    assert (outcome.trip, outcome.client, outcome.staleness) == (4, "ann", 3)


def test_accepted_upload_is_part_of_the_next_version():
    assert ACCEPTED.step == ACCEPTED.version + 1 == 6


@pytest.mark.parametrize("outcome", [TICKET, ACCEPTED, REJECTED])
def test_outcome_is_immutable_and_has_no_other_attributes(outcome):
    for name in (outcome._fields[0], "other"):
        with pytest.raises(AttributeError):
            setattr(outcome, name, 0)
