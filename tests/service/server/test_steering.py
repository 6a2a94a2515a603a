"""The state that operators give to a run: deterministic, in snapshots, and old snapshots have none."""

import json

import pytest

import tardigrad as td
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.secure_state import SecureState
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.steering import STOPPED, Steering, fault_of_limits, limits_in_force
from tardigrad.service.store.contract import ACTS, JournalEntry


def run_state(secure=None, pace=None):
    book = Bookkeeping(pace or td.Asynchronous(concurrency=2), td.Buffer(size=2))
    return RunState(
        book, td.Stop(trips=100), td.Evaluation(), DownloadSizes(10), 10, centrally=True, secure=secure
    )


def act(kind, time=1.0, **fields):
    return JournalEntry(kind, time, admin="root", wall=1e9, **fields)


def check_in(client, time=0.5):
    return JournalEntry("check_in", time, client=client)


def test_check_in_that_is_journaled_after_a_pause_gets_no_ticket():
    state = run_state()
    assert state.apply(act("pause")).acted
    assert state.apply(check_in("ann")).ticket is None
    assert not state.apply(act("pause")).acted
    assert state.apply(act("resume")).acted
    assert state.apply(check_in("ann")).ticket.trip == 0


def test_eject_ends_all_trips_of_the_client_and_drops_its_offers():
    state = run_state(SecureState(), td.Queued(concurrency=4))
    for client in ("ann", "ann", "bob"):
        state.apply(check_in(client))
    for trip, client in ((0, "ann"), (2, "bob")):
        state.apply(JournalEntry("offer", 0.6, client, trip, f"{trip}-file"))
    effects = state.apply(act("eject", client="ann"))
    assert [event.trip for event in effects.events] == [0, 1]
    assert effects.dropped == ["0-file"]
    assert list(state.secure.offers) == [2]
    assert list(state.book.in_flight) == list(state.epochs) == [2]
    assert state.given_up == 2
    assert state.apply(check_in("ann")).ticket is None
    late = state.apply(JournalEntry("offer", 2.0, "ann", 1, "1-file"))
    assert (late.events, list(state.secure.offers)) == ([], [2])
    assert not state.apply(act("eject", client="ann")).acted
    assert state.apply(act("admit", client="ann")).acted
    assert state.apply(check_in("ann")).ticket is not None


def test_versions_that_only_the_ejected_client_held_are_forgotten():
    state = run_state()
    for client in ("slow", "ann"):
        state.apply(check_in(client))
    for trip, client in ((1, "bob"), (2, "eve")):
        state.apply(JournalEntry("deliver", 0.7, trip=trip, examples=1))
        state.apply(check_in(client))
    assert state.book.version == 1
    assert state.apply(act("eject", client="slow")).forget == [0]


def test_acts_after_the_end_change_nothing_but_exports_count():
    state = run_state()
    assert state.apply(act("stop", time=5.0)).acted
    before = json.dumps(state.state())
    assert state.over == STOPPED
    for kind in sorted(ACTS - {"export"}):
        assert not state.apply(act(kind, 9.0, client="ann", limits='{"concurrency": 5}')).acted
    assert state.apply(act("export", 9.0)).acted
    assert json.dumps(state.state()) == before


def test_state_survives_a_snapshot_and_old_snapshots_have_none():
    state = run_state()
    limits = '{"concurrency": 5, "ticket_seconds": 7.5}'
    for entry in (act("pause"), act("eject", client="ann"), act("limits", limits=limits)):
        state.apply(entry)
    document = json.loads(json.dumps(state.state()))
    other = run_state()
    other.restore(document)
    assert json.loads(json.dumps(other.state())) == document
    assert other.book.pace.concurrency == 5
    assert other.steering.settings(ServiceSettings()).ticket_seconds == 7.5
    del document["steering"]
    old = run_state()
    old.restore(document)
    assert old.steering.state() == Steering().state()


@pytest.mark.parametrize("pace", [td.Synchronous(cohort=2), td.Queued(concurrency=2)])
def test_concurrency_can_change_only_in_an_asynchronous_run(pace):
    book = run_state(pace=pace).book
    in_force = limits_in_force(book, ServiceSettings())
    assert set(in_force) == {"requests_per_second", "ticket_seconds"}
    assert "is not a limit that can change in this run" in fault_of_limits({"concurrency": 3}, in_force)
