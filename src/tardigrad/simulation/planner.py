"""The planner: bookkeeping in virtual time, far ahead of training.

Delays do not depend on parameters. So the versions that clients start from, the order of arrivals, staleness
and weights are known before any gradient is computed. The planner returns them in order.

At equal times arrivals come before starts, arrivals in the order of their trip numbers, and all clients
that may start at one instant start together.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TypedDict

from tardigrad.core.bookkeeping import Bookkeeping, BookState
from tardigrad.core.outcomes import Ticket, UnknownTrip
from tardigrad.core.pace import Arrivals, Poisson, SampledStaleness, Scripted
from tardigrad.data.clients import Clients
from tardigrad.errors import RunError
from tardigrad.simulation.delay import Durations, read_trace
from tardigrad.simulation.planned import Joined, Planned
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


class PlannerState(TypedDict):
    """What a snapshot contains of a `Planner`."""

    now: float
    arrivals: list[tuple[float, int]]
    busy_until: list[tuple[int, float]]
    starts: StartsState
    book: BookState


class Planner:
    """Plans the trips of a run in virtual-time order: starts, arrivals, and trips that are given up."""

    def __init__(
        self,
        book: Bookkeeping,
        clients: Clients,
        durations: Durations,
        seed: int,
        bits: Bits | None = None,
    ) -> None:
        """`bits`: the source of randomness of Poisson sampling, in place of the seed."""
        self.book = book
        self._clients, self._durations = clients, durations
        self._starts = _starts(book, len(clients), seed, bits)
        self._arrivals: list[tuple[float, int]] = []
        self._busy_until: dict[int, float] = {}  # by client, where tasks queue
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
        raise RunError(
            f"nobody is left to train at virtual time {self._now:g}: {self.book.accepted} of "
            f"{self.book.buffer.size} uploads are in the buffer and no client may start; "
            + (
                "all others took part as often or as recently as privacy allows; lower buffer.size, "
                "privacy.separation or the number of steps, or have more clients"
                if self.book.ledger is not None
                else "lower buffer.size, or let a client count more often in one buffer "
                "(buffer.most_per_client, buffer.once_per_client), or have more clients"
            )
        )

    def _end(self, trip: int) -> Planned:
        if self._durations.gives_up(trip):
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
                begin = time
                if self.book.pace.queues:
                    begin = max(time, self._busy_until.get(client, 0.0))
                    self._busy_until[client] = begin + duration
                heappush(self._arrivals, (begin + duration, ticket.trip))
        if self._starts.joins:
            planned.append(Joined(time, self.book.all_joined()))
        return planned

    def state(self) -> PlannerState:
        """Return the whole state, for a snapshot. Draws have no state, because they depend only on their
        index."""
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
