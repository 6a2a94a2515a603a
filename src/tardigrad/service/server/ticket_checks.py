"""Checks of tickets: whether a client may deliver or give up the trip that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager

from tardigrad.core.outcomes import Ticket
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.run_state import RunState
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer


class BusyTrips:
    """Trips whose upload is being received or applied, or whose end waits in the journal's queue or for the
    helpers. They do not expire, and no second call may end them."""

    def __init__(self, offered: Container[int] = frozenset()) -> None:
        """`offered`: the trips whose uploads wait for the helpers of a secure run."""
        self._offered = offered
        self._ending: set[int] = set()
        self._arriving: Counter[int] = Counter()  # by trip: calls that receive or apply its upload

    def __contains__(self, trip: int) -> bool:
        return trip in self._ending or trip in self._arriving or trip in self._offered

    def __len__(self) -> int:
        return len(self._ending | self._arriving.keys())

    def is_ending(self, trip: int) -> bool:
        """Return whether the end of this trip waits in the queue, or for the helpers."""
        return trip in self._ending or trip in self._offered

    @contextmanager
    def ending(self, trip: int) -> Iterator[None]:
        """Mark the trip while the entry that ends it waits in the queue."""
        self._ending.add(trip)
        try:
            yield
        finally:
            self._ending.discard(trip)

    def begin_arrival(self, trip: int) -> None:
        """Mark the trip until `end_arrival` was called as often as this method."""
        self._arriving[trip] += 1

    def end_arrival(self, trip: int) -> None:
        """Undo one call of `begin_arrival`."""
        self._arriving[trip] -= 1
        if not self._arriving[trip]:
            del self._arriving[trip]

    def check_free(self, trip: int) -> None:
        """Raise `Refused` if the trip is busy."""
        if trip in self:
            raise Refused(Cause.AT_ONCE, f"trip {trip} is just being delivered or given up", retry_after=0.5)


def check_repeated(recorded: RecordedAnswer | JournalEntry, client: str, epoch: int, digest: bytes) -> None:
    """Raise `Refused` unless this is a repetition of the delivery that got the recorded answer, or that waits
    for the helpers."""
    trip = recorded.trip
    if recorded.epoch != epoch:
        raise _other_ticket(recorded.client == client, trip, epoch)
    if recorded.client != client:
        raise Refused(Cause.NOT_YOURS, f"trip {trip} is not yours")
    if recorded.digest != digest:
        raise Refused(Cause.DUPLICATE, f"trip {trip} was delivered already, with other values")


def check_announced(
    run_state: RunState, busy: BusyTrips, client: str, trip: int, epoch: int, version: int
) -> None:
    """Raise `Refused` unless the client has a ticket for this trip that began with this version, and nobody
    else delivers it or gives it up."""
    ticket = run_state.book.in_flight.get(trip)
    if ticket is not None and run_state.epochs[trip] != epoch:
        raise _other_ticket(ticket.client == client, trip, epoch)
    busy.check_free(trip)
    if ticket is None:
        raise Refused(
            Cause.UNSOLICITED, f"trip {trip} is not under way: it was given up, has expired, or never began"
        )
    _check_owner(ticket, client)
    if ticket.version != version:
        raise Refused(Cause.VERSION, f"trip {trip} started from version {ticket.version}, not {version}")


def expired(run_state: RunState, busy: BusyTrips, limit: float) -> list[Ticket]:
    """Return the tickets from before this time whose trips are not busy, the oldest first."""
    found = []
    for ticket in run_state.book.in_flight.values():  # the oldest first
        if ticket.time > limit:
            break
        if ticket.trip not in busy:
            found.append(ticket)
    return found


def can_give_up(run_state: RunState, busy: BusyTrips, client: str, trip: int, epoch: int) -> bool:
    """Return whether this trip is under way; raise `Refused` if it is another client's, or busy."""
    if run_state.epochs.get(trip) != epoch:
        return False
    busy.check_free(trip)
    ticket = run_state.book.in_flight.get(trip)
    if ticket is None:
        return False
    _check_owner(ticket, client)
    return True


def _check_owner(ticket: Ticket, client: str) -> None:
    if ticket.client != client:
        raise Refused(Cause.NOT_YOURS, f"trip {ticket.trip} is not yours")


def _other_ticket(own: bool, trip: int, epoch: int) -> Refused:
    """Return the refusal for an upload whose trip number belongs to a ticket of another epoch."""
    if own and not epoch:
        return Refused(
            Cause.NO_EPOCH, f"the upload of trip {trip} does not have its task's epoch; upgrade this client"
        )
    return Refused(
        Cause.UNSOLICITED,
        f"trip {trip} as you know it is lost: the server was restored to a state from before it began",
    )
