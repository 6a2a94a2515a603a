"""The planner: bookkeeping in virtual time, far ahead of training.

Delays do not depend on parameters. So the versions that clients start from, the order of arrivals, staleness
and weights are known before any gradient is computed. The planner returns them in order.

At equal times arrivals come before starts, arrivals in the order of their trip numbers, and all clients
that may start at one instant start together.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import NotRequired, TypedDict

from tardigrad.core.bookkeeping import Bookkeeping, BookState
from tardigrad.core.outcomes import Ticket, UnknownTrip
from tardigrad.core.pace import Arrivals, Poisson, SampledStaleness, Scripted
from tardigrad.core.participation import ClientId
from tardigrad.data.clients import Clients
from tardigrad.errors import RunError
from tardigrad.simulation.delay import Durations, read_trace
from tardigrad.simulation.network import Links, TripTimes
from tardigrad.simulation.planned import Joined, Planned
from tardigrad.simulation.presence import Presence
from tardigrad.simulation.roster import Roster
from tardigrad.simulation.starts import (
    Bits,
    ClosedLoop,
    OpenLoop,
    PoissonJoining,
    SampledStarts,
    Script,
    Starts,
    StartsState,
)

MOST_CUT_OFF = 10_000
"""After so many trips in a row that were cut off by the end of a window, and as many as there are clients, no
upload is expected any more."""


class PlannerState(TypedDict):
    """The contents of a snapshot of a `Planner`."""

    now: float
    arrivals: list[tuple[float, int]]
    busy_until: list[tuple[int, float]]
    starts: StartsState
    book: BookState
    cut_off: NotRequired[list[int]]
    uplink_free: NotRequired[float]
    downloads: NotRequired[list[tuple[ClientId, int]]]
    shares: NotRequired[list[tuple[int, float]]]


class Planner:
    """Plans the trips of a run in virtual-time order: starts, arrivals, and trips that are given up."""

    def __init__(
        self,
        book: Bookkeeping,
        clients: Clients,
        durations: Durations,
        seed: int,
        bits: Bits | None = None,
        links: Links | None = None,
        presence: Presence | None = None,
    ) -> None:
        """`bits`: the source of randomness of Poisson sampling, in place of the seed. `links`: the network,
        or None if messages take no time. `presence`: who is there, or None if everybody always is."""
        self.book = book
        self._clients, self._durations, self._links, self._presence = clients, durations, links, presence
        self._starts = _starts(book, len(clients), seed, bits)
        self._roster = None if presence is None else Roster(presence, seed)
        self._starts.roster = self._roster
        self._arrivals: list[tuple[float, int]] = []
        self._busy_until: dict[int, float] = {}  # by client, where tasks queue
        self._cut_off: set[int] = set()  # trips under way that end with their client's window
        self._in_a_row = 0  # trips that were cut off since the last that was not
        self._uplink_free = 0.0  # when the server has sent all downloads so far
        self._shares: dict[int, float] = {}  # by trip: its download over that of a whole version
        self._now = 0.0

    def advance(self) -> list[Planned]:
        """Return what happens next, or [] if a script is exhausted: one trip ends, or all clients that start
        at the same time do. Raises a RunError if no client can ever start again."""
        while True:
            start_time = self._starts.next_time(self._now)
            if self._arrivals and self._arrivals[0][0] <= start_time:
                self._now, trip = heappop(self._arrivals)
                client = self.book.in_flight[trip].client
                assert isinstance(client, int), "clients are numbered in a simulation"
                ended = self._end(trip)
                self._starts.ended(client)
                return [ended]
            if start_time == inf:
                break
            self._now = start_time
            started = self._start(start_time)
            if started:  # an arrival may find no client that may start
                return started
        if self._starts.may_run_dry:
            return []
        raise RunError(self._nobody_left())

    def _nobody_left(self) -> str:
        ledger = self.book.ledger
        if self._presence is not None and not self._starts.nobody_left():
            remedy = (
                "and no client that may start will ever be there again (availability); give longer "
                "windows, or more clients, or stop earlier"
            )
        elif ledger is not None:
            remedy = (
                "and no client may start; all others took part as often or as recently as privacy allows; "
                "raise privacy.participations, lower buffer.size, privacy.separation or the number of steps, "
                "or have more clients"
            )
        else:
            remedy = (
                "and no client may start; lower buffer.size, or let a client count more often in one buffer "
                "(buffer.most_per_client, buffer.once_per_client), or have more clients"
            )
        missing = self.book.missing()
        of = "" if missing is None else f" of {self.book.accepted + missing}"
        return (
            f"nobody is left to train at virtual time {self._now:g}: {self.book.accepted}{of} uploads are in "
            f"the buffer {remedy}"
        )

    def times(self, trip: int, client: int) -> TripTimes | None:
        """Return how long the parts of a trip take, or None if there is no network. To be called at most once
        for each trip."""
        if self._links is None:
            return None
        down, up = self._links.seconds(client, self._shares.pop(trip, 1.0))
        return TripTimes(down, self._durations(trip, client), up)

    def _cut(self, trip: int) -> bool:
        """Return whether a trip that ends now was cut off by the end of its client's window."""
        if trip not in self._cut_off:
            self._in_a_row = 0
            return False
        self._cut_off.remove(trip)
        self._in_a_row += 1
        if self._in_a_row >= max(MOST_CUT_OFF, len(self._clients)):
            raise RunError(
                f"the last {self._in_a_row:,} trips were all cut off by the end of their clients' windows "
                f"(now at virtual time {self._now:g}): trips take longer than clients are there; give longer "
                "windows (availability), shorter delays, or more bandwidth (network)"
            )
        return True

    def _end(self, trip: int) -> Planned:
        if (self._presence is not None and self._cut(trip)) or self._durations.gives_up(trip):
            self._shares.pop(trip, None)
            gave_up = self.book.give_up(trip, self._now)
            assert not isinstance(gave_up, UnknownTrip), "every arrival belongs to a trip under way"
            return gave_up
        examples = 1
        if self.book.buffer.weights == "examples":
            client = self.book.in_flight[trip].client
            assert isinstance(client, int)
            examples = self._clients.examples(client)
        delivered = self.book.deliver(trip, self._now, examples)
        assert not isinstance(delivered, UnknownTrip), "every arrival belongs to a trip under way"
        return delivered

    def _start(self, time: float) -> list[Planned]:
        planned: list[Planned] = []
        for client, duration in self._starts.clients(time):
            ticket = self.book.check_in(client, time)
            planned.append(ticket)
            if isinstance(ticket, Ticket):
                if duration is None:
                    duration = self._durations(ticket.trip, client)
                heappush(self._arrivals, (self._arrival(ticket, client, time, duration), ticket.trip))
        if self._starts.joins:
            planned.append(Joined(time, self.book.all_joined()))
        return planned

    def _arrival(self, ticket: Ticket, client: int, time: float, duration: float) -> float:
        """Return when a trip ends that starts now and in which the client trains for `duration`."""
        begin, up, links = time, 0.0, self._links
        if links is not None:
            share = 1.0
            if links.downloads is not None:  # of differences between versions
                share = links.downloads.take(client, ticket.version) / links.downloads.whole
                self._shares[ticket.trip] = share
            down, up = links.seconds(client, share)
            if links.server_seconds:  # downloads are sent one after the other
                begin = max(time, self._uplink_free)
                self._uplink_free = begin + share * links.server_seconds
                down = links.behind_uplink(down, share)
            begin += down
        queues = self.book.pace.queues
        if queues:
            begin = max(begin, self._busy_until.get(client, 0.0))
        end = begin + duration + up
        if self._roster is not None:
            leaves = self._roster.leaves(client, time, end)
            if leaves is not None:
                end = leaves
                self._cut_off.add(ticket.trip)
        if queues:
            self._busy_until[client] = end
        return end

    def state(self) -> PlannerState:
        """Return the whole state, for a snapshot. Draws have no state, because they depend only on their
        index."""
        state = self._plain_state()
        if self._presence is not None:
            state["cut_off"] = sorted(self._cut_off)
        if self._links is not None:
            state["uplink_free"] = self._uplink_free
            if self._links.downloads is not None:
                state["downloads"] = self._links.downloads.state()
                state["shares"] = list(self._shares.items())
        return state

    def _plain_state(self) -> PlannerState:
        return {
            "now": self._now,
            "arrivals": list(self._arrivals),
            "busy_until": list(self._busy_until.items()),
            "starts": self._starts.state(),
            "book": self.book.state(),
        }

    def restore(self, state: PlannerState) -> None:
        """Continue from a `state()`."""
        self._now = state["now"]
        self._arrivals[:] = [(time, trip) for time, trip in state["arrivals"]]
        heapify(self._arrivals)
        self._busy_until = dict(state["busy_until"])
        self._cut_off = set(state.get("cut_off", ()))
        self._uplink_free = state.get("uplink_free", 0.0)
        self._shares = dict(state.get("shares", []))
        if self._links is not None and self._links.downloads is not None:
            self._links.downloads.restore(state.get("downloads", []))
        self._starts.restore(state["starts"])
        self.book.restore(state["book"])


def _starts(book: Bookkeeping, population: int, seed: int, bits: Bits | None) -> Starts:
    pace = book.pace
    match pace:
        case Arrivals():
            return OpenLoop(book, population, seed, pace)
        case Poisson():
            return PoissonJoining(book, population, seed, pace, bits)
        case SampledStaleness():
            return SampledStarts(book, population, seed, pace)
        case Scripted():
            trips = list(pace.trips) if pace.file is None else read_trace(pace.file, "pace.file")
            return Script(book, population, seed, trips)
        case _:
            return ClosedLoop(book, population, seed)
