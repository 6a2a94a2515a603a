"""The types of events: how they are made from the outcomes of bookkeeping, and how they are read."""

import pytest

from tardigrad.core.events import (
    CheckInRefused,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    TripGivenUp,
    UploadReceived,
    evaluations,
)
from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Refusal, Rejected, Ticket

TICKET = Ticket(trip=4, client=7, version=2, time=0.5)


def test_event_of_an_accepted_upload_has_its_weight_and_step():
    outcome = Accepted(TICKET, time=1.25, version=5, weight=0.5, mass=1.0, closes=True)
    assert UploadReceived.of(outcome, "ann") == UploadReceived(
        trip=4, client="ann", start_time=0.5, time=1.25, start_version=2, version=5, staleness=3, weight=0.5,
        accepted=True, reason=None, step=6,
    )  # fmt: skip


def test_event_of_a_rejected_upload_has_its_reason_and_no_weight():
    outcome = Rejected(TICKET, time=1.25, version=5, reason=Reason.STALE, closes=False)
    assert UploadReceived.of(outcome, "ann") == UploadReceived(
        trip=4, client="ann", start_time=0.5, time=1.25, start_version=2, version=5, staleness=3, weight=0.0,
        accepted=False, reason="too stale", step=None,
    )  # fmt: skip


def test_event_of_a_trip_that_was_given_up_has_its_end():
    outcome = GivenUp(TICKET, time=1.25, closes=False)
    assert TripGivenUp.of(outcome, "ann") == TripGivenUp(4, "ann", start_time=0.5, time=1.25, start_version=2)


def test_event_of_a_refused_check_in_has_its_reason_and_time():
    refusal = Refusal(7, Reason.FULL, 1.25)
    assert CheckInRefused.of(refusal, "ann") == CheckInRefused(client="ann", time=1.25, reason="full")


def test_metric_that_is_missing_or_not_a_number_is_none():
    event = ModelMoved(version=1, trips=1, time=1.0, metrics={"alpha": 0.5, "note": "text"})
    assert [event.metric(name) for name in ("alpha", "note", "beta")] == [0.5, None, None]


def test_evaluations_are_selected_in_order():
    first, second = (ModelEvaluated(version, trips=0, time=0.0) for version in (0, 3))
    others = [ModelMoved(1, 1, 1.0), RunEnded("trips", 1, 1, 1.0)]
    assert evaluations([first, others[0], second, others[1]]) == [first, second]


def test_events_can_still_be_read_as_dicts():
    event = ModelEvaluated(version=3, trips=30, time=1.5, bytes=900, metrics={"accuracy": 0.5})
    with pytest.deprecated_call(match="events are objects now"):
        assert event["accuracy"] == 0.5
    with pytest.deprecated_call(), pytest.raises(KeyError):
        event["nothing"]
