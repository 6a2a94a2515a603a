"""The record of each client of a run, and pages of this list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypedDict

from tardigrad.core.events import CheckInRefused, TripGivenUp, UploadReceived
from tardigrad.core.participation import ClientId
from tardigrad.service.monitor.status import Status

MOST_CLIENTS = 50_000
"""Clients that are remembered; events of others count only for the run."""
PAGE = 25
"""Clients on one page of the list."""
LONGEST_REASON, MOST_REASONS = 100, 40
"""Characters of a reason, and different reasons that are counted."""
LONGEST_NAME = 200
"""Characters of a client's name that are shown."""


def bounded_reason(reason: str, known: Collection[str]) -> str:
    """Return a reason under which a refusal is counted: short, and one of few.

    >>> bounded_reason("too stale", {})
    'too stale'
    """
    short = reason[:LONGEST_REASON]
    return short if short in known or len(known) < MOST_REASONS else "other reasons"


class ClientRow(TypedDict):
    """One client, as the page shows it."""

    client: str
    trips: int
    """Trips that ended in an upload."""
    accepted: int
    share: float
    """Its share of the uploads that counted."""
    staleness: float | None
    """The mean of its uploads that counted; None if there are none."""
    last: float
    """The run's time of its last event."""
    ago: float | None
    """Seconds since its last request to a server; None if that is not known."""
    at_work: int | None
    """The version that it works on; None if it is idle or that is not known."""
    given_up: int
    refused: dict[str, int]
    """Uploads and check-ins that were refused, by reason."""
    software: str
    """The client's software, as it told the server; "" if that is not known."""


class ClientPage(TypedDict):
    """One page of the list."""

    rows: list[ClientRow]
    found: int
    """Clients that match the search."""
    page: int
    pages: int
    clients: int
    """All clients of the run that are listed."""
    unlisted: bool
    """Whether there are more clients than can be listed."""


class _Known:
    """The record of one client."""

    __slots__ = ("accepted", "given_up", "last", "name", "refused", "staleness", "trips")

    def __init__(self, name: str) -> None:
        self.name = name
        self.trips = self.accepted = self.given_up = self.staleness = 0
        self.last = 0.0
        self.refused: Counter[str] | None = None

    def refuse(self, reason: str) -> None:
        if self.refused is None:
            self.refused = Counter()
        self.refused[bounded_reason(reason, self.refused)] += 1


ORDERS: Mapping[str, Callable[[_Known], float | str]] = {
    "client": lambda one: one.name,
    "trips": lambda one: one.trips,
    "share": lambda one: one.accepted,
    "staleness": lambda one: one.staleness / one.accepted if one.accepted else -1.0,
    "last": lambda one: one.last,
    "given_up": lambda one: one.given_up,
    "refused": lambda one: sum(one.refused.values()) if one.refused else 0,
}
"""By what the list can be sorted."""


class ClientList:
    """The clients of a run that had an event."""

    def __init__(self) -> None:
        self._known: dict[ClientId, _Known] = {}
        self._accepted = 0
        self._unlisted = False

    def __len__(self) -> int:
        return len(self._known)

    def take(self, event: UploadReceived | TripGivenUp | CheckInRefused) -> None:
        """Note an event of a client."""
        if event.client is None:
            return
        name = event.client if isinstance(event.client, int) else event.client[:LONGEST_NAME]
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MOST_CLIENTS:
                self._unlisted = True
                return
            known = self._known[name] = _Known(str(name))
        if event.time is not None:
            known.last = event.time
        match event:
            case TripGivenUp():
                known.given_up += 1
            case CheckInRefused():
                known.refuse(event.reason)
            case UploadReceived():
                known.trips += 1
                if event.accepted:
                    self._accepted += 1
                    known.accepted += 1
                    known.staleness += event.staleness or 0
                else:
                    known.refuse(str(event.reason))

    def page(
        self, search: str, order: str, down: bool, number: int, status: Status | None = None
    ) -> ClientPage:
        """Return a page of the clients whose name contains `search`, sorted by a key of `ORDERS`.

        `status`: what the server wrote last, which may know who is at work and who was seen when.
        """
        wanted = search.casefold()
        known = [*self._known.values(), *self._unheard(status)]
        found = [one for one in known if wanted in one.name.casefold()]
        found.sort(key=ORDERS.get(order, ORDERS["trips"]), reverse=down)
        pages = max(1, -(-len(found) // PAGE))
        number = min(max(number, 0), pages - 1)
        rows = [self._row(one, status) for one in found[number * PAGE : (number + 1) * PAGE]]
        return ClientPage(
            rows=rows, found=len(found), page=number, pages=pages, clients=len(known),
            unlisted=self._unlisted,
        )  # fmt: skip

    def _unheard(self, status: Status | None) -> list[_Known]:
        """Return the clients that a server names and that had no event yet."""
        names = {} if status is None else {**status.last_seen, **status.at_work}
        return [_Known(name[:LONGEST_NAME]) for name in names if name not in self._known]

    def _row(self, one: _Known, status: Status | None) -> ClientRow:
        return ClientRow(
            client=one.name,
            trips=one.trips,
            accepted=one.accepted,
            share=one.accepted / max(1, self._accepted),
            staleness=one.staleness / one.accepted if one.accepted else None,
            last=one.last,
            ago=None if status is None else status.last_seen.get(one.name),
            at_work=None if status is None else status.at_work.get(one.name),
            given_up=one.given_up,
            refused=dict(one.refused or {}),
            software=_software(status).get(one.name, ""),
        )


def _software(status: Status | None) -> Mapping[str, str]:
    return getattr(status, "software", {})
