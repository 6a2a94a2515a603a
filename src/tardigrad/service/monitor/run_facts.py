"""Facts about a served run that can explain why it makes no progress.

All times are seconds before now. None stands for something that is not known, or never happened.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.outcomes import Reason
from tardigrad.core.participation import ClientId
from tardigrad.service.monitor.counters import UPLOAD
from tardigrad.service.protocol.refusal_streaks import RefusalStreaks

if TYPE_CHECKING:
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.rpc import Servicer

MOST_TRIPS = 1000
"""Trips under way that are looked at."""


@dataclass(frozen=True)
class TripUnderWay:
    """A trip whose upload has not come."""

    client: str
    silent: float
    """Seconds since the client was heard of, or since the trip began or the server started if it was not."""
    left: float
    """Seconds until its ticket expires."""


@dataclass(frozen=True)
class StreakFacts:
    """A streak of refusals (see `RefusalStreak`)."""

    reason: str
    method: str
    client: str
    first: float
    last: float
    count: int
    unanswered: bool
    """Whether no call of this kind succeeded since the streak began."""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts at one moment. The defaults are those of a run of which nothing is known."""

    over: str = ""
    paused_by: str = ""
    """The operator who has paused the run; empty if it is not paused."""
    paused: float | None = None
    helper_away: float | None = None
    steps_waiting: int = 0
    began: float | None = None
    """When the server process began."""
    came: bool | None = None
    """Whether a client has asked this process for a task, or delivered an upload."""
    heard: float | None = None
    """When one did last."""
    active: int | None = None
    """Clients that were heard of in the last minutes."""
    enrolled: int | None = None
    in_flight: int = 0
    trips: tuple[TripUnderWay, ...] = ()
    trip_seconds: float | None = None
    """How long a trip takes on average."""
    ticket_seconds: float | None = None
    waiting: int = 0
    """Clients that wait for a task."""
    capacity: int | None = None
    """How many more trips may begin now."""
    missing: int | None = None
    """Uploads that the next step needs."""
    share: int | None = None
    """Uploads of one client that a buffer may have."""
    objections: tuple[tuple[str, int], ...] = ()
    """Why active clients may give nothing to this buffer: reasons, and how many clients."""
    possible: int | None = None
    """Uploads that all enrolled clients may still give to this buffer; None for any number."""
    possible_now: int | None = None
    """The same of the active clients and those that have a trip under way."""
    accepted: float | None = None
    """When the last upload counted."""
    refusals: tuple[StreakFacts, ...] = ()
    """The refusals of requests."""
    upload_refusals: tuple[StreakFacts, ...] = ()
    """The refusals of uploads that were received."""


def gather_facts(coordinator: Coordinator, servicer: Servicer) -> RunFacts:
    """Return the facts of a served run as it is now. Must be called in the event loop's thread."""
    run_state, counters = coordinator.run_state, coordinator.counters
    book, link, now = run_state.book, coordinator.link, time.monotonic()
    paused, ejected = run_state.steering.paused, run_state.steering.ejected
    active = [client for client in counters.active_clients() if client not in ejected]
    streaks = servicer.refusals.streaks
    heard = max(streaks.last_answer(call) or 0.0 for call in ("FetchTask", "Deliver"))
    under_way = {str(ticket.client) for ticket in book.in_flight.values()}
    enrolled = servicer.enrolled
    members = len(enrolled) - sum(enrolled.knows(client) for client in ejected)

    def is_member(client: str) -> bool:
        return enrolled.knows(client) and client not in ejected

    accepted = counters.uploads.last_answer(UPLOAD)
    return RunFacts(
        over=run_state.over or "",
        paused_by="" if paused is None else paused.admin,
        paused=None if paused is None else max(0.0, coordinator.clock.wall() - paused.wall),
        helper_away=None if link is None else link.away,
        steps_waiting=0 if link is None else link.steps_waiting,
        began=now - counters.began,
        came=heard > 0,
        heard=now - heard if heard else None,
        active=len(active),
        enrolled=members,
        in_flight=len(book.in_flight),
        trips=tuple(_trips(coordinator)),
        trip_seconds=counters.trip_seconds,
        ticket_seconds=coordinator.settings.ticket_seconds,
        waiting=coordinator.waiting,
        capacity=book.capacity(),
        missing=book.missing(),
        share=book.share(),
        objections=tuple(_objections(book, set(active) - under_way).items()),
        possible=_possible(book, members, lambda client: is_member(str(client))),
        possible_now=_possible(book, len(present := under_way.union(active)), present.__contains__),
        accepted=None if accepted is None else now - accepted,
        refusals=_streaks(streaks, now),
        upload_refusals=_streaks(counters.uploads, now),
    )


def _trips(coordinator: Coordinator) -> Iterable[TripUnderWay]:
    """Yield the oldest trips under way. Those whose uploads are being received are not silent."""
    counters, began = coordinator.counters, time.monotonic() - coordinator.counters.began
    for ticket in islice(coordinator.run_state.book.in_flight.values(), MOST_TRIPS):
        age = coordinator.now - ticket.time
        silence = counters.silence(str(ticket.client))
        silent = min(age, began) if silence is None else silence
        left = coordinator.settings.ticket_seconds - min(age, began)
        yield TripUnderWay(
            str(ticket.client), 0.0 if ticket.trip in coordinator.busy else silent, max(0.0, left)
        )


def _objections(book: Bookkeeping, clients: Iterable[str]) -> Counter[str]:
    found = (book.objection(client) for client in clients)
    return Counter(reason.value for reason in found if reason not in (None, Reason.TRAINING))


def _possible(book: Bookkeeping, clients: int, among: Callable[[ClientId], bool]) -> int | None:
    """Return how many uploads these clients may still give to the buffer, or a number that is enough; None
    for any number."""
    if book.ledger is not None:  # who has given one rests until later steps
        least = clients - len(book.ledger.resting)
        if least >= (book.missing() or 0):  # the exact number is not worth a walk over all that rest
            return least
        return clients - sum(among(client) for client in book.ledger.resting)
    share = book.share()
    if share is None:
        return None
    return clients * share - sum(count for client, count in book.contributions.items() if among(client))


def _streaks(streaks: RefusalStreaks, now: float) -> tuple[StreakFacts, ...]:
    return tuple(
        StreakFacts(
            one.reason, one.method, one.client, now - one.first, now - one.last, one.count,
            streaks.unanswered(one), one.sentence,
        )
        for one in streaks.found.values()
    )  # fmt: skip
