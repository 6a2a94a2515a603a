"""Why a served run makes no progress: one test for each cause, on facts alone."""

import itertools
import random

import pytest

from tardigrad.core.outcomes import Reason
from tardigrad.service.monitor.explain import ORDER, explain
from tardigrad.service.monitor.refusal_remedies import OF_REQUESTS, OF_UPLOADS, PASSING, remedy_of
from tardigrad.service.monitor.run_facts import RunFacts, StreakFacts, TripUnderWay
from tardigrad.service.protocol.refusal_streaks import LONGEST_GAP, RefusalStreaks
from tardigrad.service.protocol.refusals import Cause


def streak(reason, method="Join", client="ann", first=100.0, last=2.0, count=7, unanswered=True):
    return StreakFacts(str(reason), method, client, first, last, count, unanswered)


def known(**changes):
    """A run that goes well, with some facts changed."""
    facts = {
        "began": 1000.0, "came": True, "heard": 1.0, "active": 4, "enrolled": 4, "in_flight": 3,
        "trips": tuple(TripUnderWay(name, 5.0, 3500.0) for name in ("ann", "bob", "eve")),
        "trip_seconds": 10.0, "ticket_seconds": 3600.0, "waiting": 0, "capacity": 1, "missing": 6,
        "accepted": 2.0,
    }  # fmt: skip
    return RunFacts(**facts | changes)


NOBODY = {"in_flight": 0, "trips": (), "capacity": 4}


def only(facts, severity):
    (found,) = explain(facts)
    assert found.severity == severity
    return found


def test_nothing_is_wrong():
    found = only(known(), "info")
    assert found.sentence == (
        "Nothing is wrong: 3 trips are under way, and the next step needs 6 more uploads."
    )
    assert found.remedy == ""


def test_no_client_has_come():
    found = only(known(came=False, heard=None, active=0, accepted=None, **NOBODY), "warning")
    assert found.sentence == "No client has come since the server began."
    assert found.since == 1000.0
    assert "tardigrad join" in found.remedy


def test_clients_have_gone():
    found = only(known(heard=400.0, active=0, **NOBODY), "warning")
    assert found.sentence == "No trip is under way, and no client waits for one."
    assert found.since == 400.0


def test_clients_wait_for_capacity():
    found = explain(known(waiting=5, capacity=0))
    assert [one.severity for one in found] == ["info", "info"]
    assert found[1].sentence == ("The pace allows no more than these trips; 5 clients wait for one to end.")


@pytest.mark.parametrize("cause", Cause)
def test_all_requests_are_refused(cause):
    facts = known(
        came=False, heard=None, active=0, accepted=None, refusals=(streak(cause, first=100.0),), **NOBODY
    )
    found = only(facts, "error")
    assert found.sentence == f"All requests are refused: {cause} (7 times; the last was Join of ann)."
    assert found.remedy == OF_REQUESTS[cause]
    assert found.since == 100.0


@pytest.mark.parametrize("cause", [Cause.VALUES, Cause.SHAPE, Cause.ENCODING])
def test_all_uploads_are_refused_when_they_are_sent(cause):
    """Other trips are under way meanwhile, and no upload counts."""
    facts = known(refusals=(streak(cause, "Deliver", first=50.0),), accepted=60.0)
    found = explain(facts)
    assert [one.severity for one in found] == ["error"]
    assert found[0].sentence.startswith(f"All uploads are refused: {cause}")


@pytest.mark.parametrize("reason", OF_UPLOADS)
def test_no_upload_that_is_received_counts(reason):
    facts = known(upload_refusals=(streak(reason, "upload", first=50.0),), accepted=60.0)
    found = only(facts, "error")
    assert found.sentence == f"All uploads are refused: {reason} (7 times; the last was of ann)."
    assert found.remedy == OF_UPLOADS[reason]
    assert found.since == 50.0


def test_uploads_that_are_refused_beside_others_that_count_are_no_explanation():
    facts = known(upload_refusals=(streak(Reason.STALE, "upload", unanswered=False),))
    assert "Nothing is wrong" in only(facts, "info").sentence


def test_some_requests_are_refused():
    facts = known(refusals=(streak(Cause.NOT_ENROLLED, unanswered=False),))
    found = explain(facts)
    assert [one.severity for one in found] == ["warning", "info"]
    assert found[0].sentence.startswith("Some requests are refused: not enrolled")
    assert "Nothing is wrong" not in found[1].sentence
    old = known(refusals=(streak(Cause.NOT_ENROLLED, last=LONGEST_GAP + 1, unanswered=False),))
    assert "Nothing is wrong" in only(old, "info").sentence


@pytest.mark.parametrize("cause", sorted(PASSING))
def test_refusals_that_clients_get_over_are_no_explanation(cause):
    facts = known(refusals=(streak(cause, unanswered=False),))
    assert "Nothing is wrong" in only(facts, "info").sentence


def test_a_full_disk_is_an_error_although_trips_are_under_way():
    facts = known(refusals=(streak(Cause.DISK, "FetchTask"),), accepted=1.0)
    found = explain(facts)
    assert [one.severity for one in found] == ["error"]
    assert "disk full" in found[0].sentence
    assert "Make room" in found[0].remedy


def test_tickets_are_out_with_silent_clients():
    trips = tuple(TripUnderWay(f"site-{n}", 300.0 + n, 3000.0 + n) for n in range(8))
    found, under_way = explain(known(trips=trips, in_flight=8, accepted=300.0))
    assert found.severity == "warning"
    assert found.sentence == (
        "All 8 trips under way belong to clients that are silent: site-7 (5 min), site-6 (5 min), "
        "site-5 (5 min), site-4 (5 min), site-3 (5 min), ..., and a trip takes 10 s on average. Their "
        "tickets expire in 50 min."
    )
    assert "service.ticket_seconds below 3600" in found.remedy
    assert found.since == 300.0
    assert "Nothing is wrong" not in under_way.sentence


def test_a_client_that_trains_is_silent_for_as_long_as_a_trip_takes():
    cases = [(10.0, 59.0, False), (10.0, 61.0, True), (600.0, 1700.0, False), (600.0, 1900.0, True)]
    for usual, silent, told in [*cases, (None, 250.0, False), (None, 350.0, True)]:
        trips = (TripUnderWay("ann", silent, 100.0),)
        found = explain(known(trips=trips, in_flight=1, trip_seconds=usual))
        assert (found[0].severity == "warning") == told, (usual, silent)


def test_one_client_that_is_heard_of_is_enough():
    trips = (TripUnderWay("ann", 900.0, 100.0), TripUnderWay("bob", 1.0, 100.0))
    assert "Nothing is wrong" in only(known(trips=trips, in_flight=2), "info").sentence


def test_too_few_clients_are_enrolled_for_their_share_of_the_buffer():
    found = only(known(share=1, possible=2, possible_now=2, missing=5, enrolled=3), "error")
    assert found.sentence == (
        "The next step needs 5 more uploads, but the 3 enrolled clients may give only 2 to it (at most 1 of "
        "each: buffer.most_per_client or once_per_client)."
    )
    assert found.remedy.startswith("Enroll 3 more clients")
    assert found.since == 2.0
    wide = only(known(share=2, possible=2, possible_now=2, missing=5), "error")
    assert wide.remedy.startswith("Enroll 2 more clients")


def test_the_clients_that_come_have_given_their_share():
    facts = known(share=2, possible=12, possible_now=0, missing=5, active=3, waiting=3,
                  objections=((Reason.CONTRIBUTED.value, 3),), **NOBODY)  # fmt: skip
    found = explain(facts)
    assert [one.severity for one in found] == ["warning", "info"]
    assert "the 3 clients that came in the last minutes may give only 0 to it" in found[0].sentence
    assert "3 have given their share of this buffer" in found[0].sentence
    assert "Start the enrolled clients that are away" in found[0].remedy


@pytest.mark.parametrize(
    ("reason", "words"),
    [(Reason.RESTING, "privacy.separation"), (Reason.FINISHED, "privacy.participations")],
)
def test_the_ledger_leaves_too_few_clients(reason, words):
    facts = known(possible=1, possible_now=1, missing=4, objections=((reason.value, 3),), **NOBODY)
    found = explain(facts)
    assert found[0].severity == "error"
    assert f"3 {'rest' if reason is Reason.RESTING else 'took'}" in found[0].sentence
    change = "a smaller privacy.separation" if reason is Reason.RESTING else "a larger privacy.participations"
    assert f"or {change}." in found[0].remedy
    assert words in found[0].sentence


def test_a_helper_is_away():
    refused = (streak(Cause.HELPER_AWAY, "Deliver"),)
    found = only(known(helper_away=44.0, refusals=refused), "error")
    assert "helper" in found.sentence
    assert found.since == 44.0


def test_steps_wait_for_signatures():
    found = explain(known(steps_waiting=1))
    assert found[0].sentence == "1 step of this secure run waits for the helpers' signatures."


def test_the_run_is_over():
    found = only(known(over="trips"), "info")
    assert found.sentence == "The run is over (trips)."
    assert "tardigrad show" in found.remedy


def test_the_run_is_over_but_for_steps_of_the_helpers():
    found = only(known(over="trips", steps_waiting=2, helper_away=9.0), "error")
    assert "2 steps that the helpers must release and sign" in found.sentence
    assert found.since == 9.0


def test_the_run_is_paused():
    found = only(known(paused_by="olga", paused=33.0), "warning")
    assert found.sentence == (
        "The operator olga has paused the run: no trip begins, and 3 trips under way may end."
    )
    assert "tardigrad admin resume" in found.remedy
    assert found.since == 33.0


def test_the_run_is_paused_and_a_helper_is_away():
    found = explain(known(paused_by="olga", paused=33.0, helper_away=5.0))
    assert [one.severity for one in found] == ["error", "warning"]
    assert "A helper of this secure run cannot be reached" in found[0].sentence


def test_what_a_server_tells_any_client_is_not_more_than_it_knows():
    assert explain(RunFacts(in_flight=2))[0].sentence == "2 trips are under way."
    assert explain(RunFacts())[0].sentence == "No trip is under way, and no client waits for one."
    assert explain(RunFacts(waiting=2))[0].sentence == "No trip is under way; 2 clients wait for a task."


def test_every_reason_has_a_remedy():
    assert set(OF_REQUESTS) == set(Cause)
    never = {Reason.FULL, Reason.TRAINING, Reason.UNKNOWN, Reason.DUPLICATE}  # of check-ins and unknown trips
    assert set(OF_UPLOADS) == set(Reason) - never
    for reason in itertools.chain(Cause, Reason, ["a reason of another version"]):
        assert remedy_of(str(reason)).endswith(".")


def test_any_facts_have_an_explanation_with_the_gravest_first():
    draws = random.Random(3)

    def some(*values):
        return draws.choice(values)

    for _ in range(3000):
        streaks = [
            streak(some(*Cause), some("Join", "FetchTask", "Deliver"), some("", "ann"), some(1.0, 900.0),
                   some(0.5, 800.0), some(1, 5), some(True, False))
            for _ in range(draws.randrange(3))
        ]  # fmt: skip
        facts = known(
            came=some(None, False, True), heard=some(None, 2.0), in_flight=some(0, 1, 5),
            waiting=some(0, 1, 4),
            trips=some((), (TripUnderWay("ann", some(0.0, 999.0), 0.0),)), trip_seconds=some(None, 5.0),
            capacity=some(None, 0, 3), missing=some(None, 0, 4), share=some(None, 2), enrolled=some(None, 3),
            possible=some(None, 0, 9), possible_now=some(None, 0, 9), accepted=some(None, 3.0),
            helper_away=some(None, 3.0), steps_waiting=some(0, 2), over=some("", "trips"),
            refusals=tuple(streaks), upload_refusals=some((), (streak(some(*OF_UPLOADS), "upload"),)),
            objections=some((), ((Reason.RESTING.value, 2),)),
        )  # fmt: skip
        found = explain(facts)
        assert found
        grades = [ORDER.index(one.severity) for one in found]
        assert grades == sorted(grades)
        assert all(one.sentence.endswith(".") for one in found)
        if any(one.severity != "info" for one in found):
            assert not any("Nothing is wrong" in one.sentence for one in found)


def test_a_streak_ends_with_minutes_of_quiet_and_knows_what_succeeded_since():
    streaks = RefusalStreaks()
    streaks.refused("disk full", "Deliver", "ann", 0.0)
    streaks.refused("disk full", "Deliver", "bob", 10.0)
    (one,) = streaks.found.values()
    assert (one.first, one.last, one.count, one.client) == (0.0, 10.0, 2, "bob")
    streaks.answered("Join", 11.0)
    assert streaks.unanswered(one), "another call says nothing about this one"
    streaks.answered("Deliver", 12.0)
    assert not streaks.unanswered(one)
    streaks.refused("disk full", "Deliver", "ann", 11.0 + LONGEST_GAP)
    (one,) = streaks.found.values()
    assert (one.first, one.count) == (11.0 + LONGEST_GAP, 1)
    assert streaks.unanswered(one)
