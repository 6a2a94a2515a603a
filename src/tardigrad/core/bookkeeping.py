"""Bookkeeping: which client started from which version, what is stale, what is in the buffer.

It is a pure state machine. The caller reports what happened and when (`check_in`, `deliver`, `give_up`), and
each call returns a decision (`core/outcomes.py`). It never reads a clock, draws a random number or sees a
parameter, so the simulator can run it far ahead of training and the server can journal it.

>>> from tardigrad.core.pace import Asynchronous
>>> book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=1))
>>> ann, bob = book.check_in("ann", time=0.0), book.check_in("bob", time=0.0)
>>> book.deliver(ann.trip, time=1.0).staleness, book.deliver(bob.trip, time=2.0).staleness
(0, 1)
>>> book.version
2
"""

from __future__ import annotations

import warnings
from typing import Literal, NotRequired, TypedDict

from pydantic import NonNegativeInt, PositiveInt

from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Refusal, Rejected, Ticket, UnknownTrip
from tardigrad.core.pace import Pace
from tardigrad.core.participation import ClientId, Ledger, LedgerState, Limits
from tardigrad.core.setting import Setting
from tardigrad.core.staleness import Constant, RoundedLaw, StalenessLaw


class Buffer(Setting):
    """Which uploads count, and how many of them make a step.

    >>> Buffer(size=10, staleness_bound=20).size
    10
    """

    size: PositiveInt | None = None
    """Accepted uploads that make a step (K). Default: the algorithm's own, or the cohort of a
    synchronous pace; with a Poisson pace, all who joined at this step."""
    staleness_bound: NonNegativeInt | None = None
    """Uploads of a greater staleness are refused."""
    once_per_client: bool = False
    """A client that contributed may start again only after the next step; the same as most_per_client = 1."""
    most_per_client: PositiveInt | None = None
    """Uploads of one client that one buffer may have; further ones are refused until the next step. Default:
    any number; `tardigrad serve` sets a quarter of the buffer, or more where few clients are enrolled."""
    weights: Literal["equal", "examples"] = "equal"
    """Whether clients weigh the same or by their number of examples."""

    @property
    def share(self) -> int | None:
        """Uploads of one client that one buffer may have, or None for any number."""
        return 1 if self.once_per_client else self.most_per_client


class BookState(TypedDict):
    """The contents of a snapshot of `Bookkeeping`, as JSON."""

    version: int
    next_trip: int
    accepted: int
    in_flight: list[tuple[int, ClientId, int, float]]
    """The fields of each `Ticket`."""
    contributed: list[ClientId]
    contributions: NotRequired[list[tuple[ClientId, int]]]
    """The number of uploads of each client in the buffer."""
    this_version: int
    waiting: int
    joined: bool
    ledger: LedgerState | None


class Bookkeeping:
    """The state machine. Times are stored but never compared; the caller must call in chronological order.

    >>> from tardigrad.core.pace import Asynchronous
    >>> book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1))
    >>> book.check_in("ann", time=0.0)
    Ticket(trip=0, client='ann', version=0, time=0.0)
    >>> book.check_in("bob", time=0.5).reason
    <Reason.FULL: 'full'>
    >>> book.deliver(0, time=1.0).closes, book.version
    (True, 1)
    """

    def __init__(
        self,
        pace: Pace,
        buffer: Buffer,
        staleness: StalenessLaw | RoundedLaw | None = None,
        opening: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.pace = pace
        self.opening = opening
        """How many clients make the first step, once each and at any pace; 0 if there is no such opening."""
        self.buffer = buffer
        self.law: StalenessLaw | RoundedLaw = staleness if staleness is not None else Constant()
        self.version = 0
        self.next_trip = 0
        self.accepted = 0
        """Uploads in the buffer now."""
        self.in_flight: dict[int, Ticket] = {}
        self.training: set[ClientId] = set()
        """Clients that are training and may not start again. It stays empty if the pace lets tasks queue."""
        self.contributions: dict[ClientId, int] = {}
        """How many uploads each client has in the buffer now. It is kept only if their number is limited."""
        self.contributed: set[ClientId] = set()
        """Clients that have as many uploads in the buffer as they may have."""
        self.ledger = Ledger(limits) if limits is not None else None
        """The steps that each client took part in, or None if participation is not limited."""
        self._this_version = 0  # trips from the current version, under way or accepted
        self._waiting = 0  # trips from the current version, under way
        self._joined = False  # whether all clients that join at this version have started (Poisson pace)
        self._in_opening = opening > 0
        self._discounts: dict[int, float] = {}

    def capacity(self) -> int:
        """Return how many more clients may start now."""
        if self._in_opening:
            return self.opening - self._this_version
        in_flight = len(self.in_flight)
        if self.pace.queues:
            in_flight += self.accepted  # they are replaced at the step, not before
        return self.pace.capacity(in_flight, self._this_version)

    def room(self) -> int:
        """Return `capacity()`. This is its old name."""
        warnings.warn("Bookkeeping.room is called capacity now", DeprecationWarning, stacklevel=2)
        return self.capacity()

    def objection(self, client: ClientId) -> Reason | None:
        """Return why this client in particular may not start now, or None if it may."""
        if client in self.training:
            return Reason.TRAINING
        if client in self.contributed:
            return Reason.CONTRIBUTED
        if self.ledger is not None and client in self.ledger.resting:  # only a hint: `deliver` decides
            return self._limit_reached(client)
        return None

    def _limit_reached(self, client: ClientId) -> Reason | None:
        """Return why this client may not take part in the step that is being filled, or None if it may."""
        if self.ledger is None or self.ledger.allows(client, self.version + 1):
            return None
        return Reason.FINISHED if self.ledger.finished(client) else Reason.RESTING

    def unavailable(self) -> tuple[set[ClientId], ...]:
        """Return the clients that may not start now whatever the capacity, one set for each reason."""
        resting: set[ClientId] = self.ledger.resting if self.ledger is not None else set()
        return self.training, self.contributed, resting

    def check_in(self, client: ClientId, time: float) -> Ticket | Refusal:
        """Return a ticket for the current version to a client that offers to train, or the refusal."""
        reason = self.objection(client)
        if reason is None and self.capacity() <= 0:
            reason = Reason.FULL
        if reason is not None:
            return Refusal(client, reason, time)
        ticket = Ticket(self.next_trip, client, self.version, time)
        self.next_trip += 1
        self.in_flight[ticket.trip] = ticket
        if not self.pace.queues:
            self.training.add(client)
        self._this_version += 1
        self._waiting += 1
        return ticket

    def deliver(
        self, trip: int, time: float, examples: int = 1, refused: Reason | None = None
    ) -> Accepted | Rejected | UnknownTrip:
        """Decide whether an upload counts, with which weight, and whether the model moves now.

        `refused` is the reason why the caller, who can see the values, has decided that it does not count.
        """
        ticket = self.in_flight.get(trip)
        if ticket is None:
            return self._unknown(trip, time)
        self._end(ticket)
        client, version = ticket.client, self.version
        staleness = version - ticket.version
        bound = self.buffer.staleness_bound
        if refused is not None:
            pass
        elif staleness and self.pace.in_rounds:
            refused = Reason.LATE
        elif bound is not None and staleness > bound:
            refused = Reason.STALE
        elif client in self.contributed:
            refused = Reason.CONTRIBUTED
        elif (limit := self._limit_reached(client)) is not None:
            refused = limit
        else:
            mass = float(examples) if self.buffer.weights == "examples" else 1.0
            self.accepted += 1
            if self.ledger is not None:
                self.ledger.enter(client, version + 1)
            self._contribute(client)
            weight = self._discount(staleness) * mass
            return Accepted(ticket, time, version, weight, mass, self._step_if_full())
        if ticket.version == version:
            self._this_version -= 1
        return Rejected(ticket, time, version, refused, self._step_if_full())

    def give_up(self, trip: int, time: float) -> GivenUp | UnknownTrip:
        """End a trip whose client will not deliver. The model can move now only if a step waits for all
        clients that have joined."""
        ticket = self.in_flight.get(trip)
        if ticket is None:
            return self._unknown(trip, time)
        self._end(ticket)
        if ticket.version == self.version:
            self._this_version -= 1
        return GivenUp(ticket, time, self._step_if_full())

    def _unknown(self, trip: int, time: float) -> UnknownTrip:
        reason = Reason.DUPLICATE if 0 <= trip < self.next_trip else Reason.UNKNOWN
        return UnknownTrip(trip, time, self.version, reason)

    def all_joined(self) -> bool:
        """Note that no other client joins at this version (Poisson pace), and return whether the model moves
        now. It moves with an empty buffer if no client joined at all."""
        self._joined = True
        return self._step_if_full()

    def share(self) -> int | None:
        """Return how many uploads one client may have in the buffer that is being filled."""
        return 1 if self._in_opening else self.buffer.share

    def missing(self) -> int | None:
        """Return how many more uploads the next step needs; None if it waits for all clients that joined."""
        size = self.opening if self._in_opening else self.buffer.size
        return None if size is None else size - self.accepted

    def _contribute(self, client: ClientId) -> None:
        share = self.share()
        if share is not None:
            count = self.contributions[client] = self.contributions.get(client, 0) + 1
            if count >= share:
                self.contributed.add(client)

    def _end(self, ticket: Ticket) -> None:
        del self.in_flight[ticket.trip]
        self.training.discard(ticket.client)
        if ticket.version == self.version:
            self._waiting -= 1

    def _step_if_full(self) -> bool:
        missing = self.missing()
        full = self._joined and self._waiting == 0 if missing is None else missing == 0
        if full:
            self.version += 1
            self.accepted = self._this_version = self._waiting = 0
            self._joined = self._in_opening = False
            self.contributions.clear()
            self.contributed.clear()
            if self.ledger is not None:
                self.ledger.advance(self.version + 1)
        return full

    def _discount(self, staleness: int) -> float:
        discount = self._discounts.get(staleness)
        if discount is None:
            discount = self._discounts[staleness] = self.law(staleness)
        return discount

    def state(self) -> BookState:
        """Return the whole state, for a snapshot."""
        return {
            "version": self.version,
            "next_trip": self.next_trip,
            "accepted": self.accepted,
            "in_flight": [*self.in_flight.values()],
            "contributed": sorted(self.contributed, key=str),
            "contributions": sorted(self.contributions.items(), key=str),
            "this_version": self._this_version,
            "waiting": self._waiting,
            "joined": self._joined,
            "ledger": None if self.ledger is None else self.ledger.state(),
        }

    def restore(self, state: BookState) -> None:
        """Continue from a `state()`."""
        self.version = state["version"]
        self.next_trip = state["next_trip"]
        self.accepted = state["accepted"]
        self.in_flight = {row[0]: Ticket(*row) for row in state["in_flight"]}
        if not self.pace.queues:
            self.training = {ticket.client for ticket in self.in_flight.values()}
        self.contributed = set(state["contributed"])
        self.contributions = dict(state.get("contributions", ()))
        self._this_version = state["this_version"]
        self._waiting = state["waiting"]
        self._joined = state["joined"]
        if self.ledger is not None and state["ledger"] is not None:
            self.ledger.restore(state["ledger"], self.version + 1)
        self._in_opening = self.opening > 0 and self.version == 0
