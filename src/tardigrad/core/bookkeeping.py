"""Bookkeeping: who started from which version, what is stale, what is in the buffer.

A pure state machine. It is told what happened and when (`check_in`, `deliver`, `give_up`), and answers
with decisions. It never reads a clock, draws a random number or sees a parameter, so that the simulator
can run it far ahead of training and the server can journal it.

>>> book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=1))
>>> ann, bob = book.check_in("ann", time=0.0), book.check_in("bob", time=0.0)
>>> book.deliver(ann.trip, time=1.0).staleness, book.deliver(bob.trip, time=2.0).staleness
(0, 1)
>>> book.version
2
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from tardigrad.core.pace import Asynchronous, Pace
from tardigrad.core.participation import ClientId, Ledger, Limits
from tardigrad.core.setting import Setting
from tardigrad.core.staleness import Constant, StalenessLaw


class Buffer(Setting):
    """What counts, and how many uploads make a step."""

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


class Reason(StrEnum):
    """Why a check-in or an upload was refused."""

    FULL = "full"
    TRAINING = "already training"
    CONTRIBUTED = "already in this buffer"
    UNKNOWN = "unknown trip"
    DUPLICATE = "duplicate"
    LATE = "round closed"
    STALE = "too stale"
    RESTING = "took part too recently"
    FINISHED = "took part as often as allowed"
    NORM = "norm too large"
    OUTLIER = "norm far above the others"


class Ticket(NamedTuple):
    """The right to one trip, from one version."""

    trip: int
    client: ClientId
    version: int
    time: float


class Refusal(NamedTuple):
    """A check-in that was not granted."""

    client: ClientId
    reason: Reason
    time: float


class Delivery(NamedTuple):
    """What became of an upload."""

    trip: int
    client: ClientId | None
    start_time: float | None
    time: float
    start_version: int | None
    version: int
    """The version at arrival."""
    staleness: int | None
    weight: float
    """What the upload is multiplied with; 0 if it was refused."""
    mass: float
    """What it adds to the divisor: 1, or its examples. Staleness does not enter."""
    accepted: bool
    reason: Reason | None
    step: int | None
    """The version that its buffer makes; nothing if it was refused."""
    closes: bool
    """Whether it filled the buffer: the model must move now."""


class Bookkeeping:
    """The state machine. Times are recorded, never compared: order is the caller's word."""

    def __init__(
        self,
        pace: Pace,
        buffer: Buffer,
        staleness: StalenessLaw | None = None,
        opening: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.pace = pace
        self.opening = opening
        """So many clients make the first step, once each, whatever the pace; 0 for no such opening."""
        self.buffer = buffer
        self.law = staleness if staleness is not None else Constant()
        self.version = 0
        self.next_trip = 0
        self.accepted = 0
        """Uploads in the buffer now."""
        self.in_flight: dict[int, Ticket] = {}
        self.training: set[ClientId] = set()
        """Clients that are under way (and may not start again, unless the pace lets tasks queue)."""
        self.contributions: dict[ClientId, int] = {}
        """How many uploads each client has in the buffer now (kept only where their number is limited)."""
        self.contributed: set[ClientId] = set()
        """Clients that have as many uploads in the buffer now as they may have."""
        self.ledger = Ledger(limits) if limits is not None else None
        """Who took part when, where that is limited."""
        self._this_version = 0  # trips from the current version, under way or accepted
        self._waiting = 0  # trips from the current version, under way
        self._joined = False  # whether all who join at this version have (Poisson without a size)
        self._in_opening = opening > 0
        self._discounts: dict[int, float] = {}

    def room(self) -> int:
        """How many more clients may start now."""
        if self._in_opening:
            return self.opening - self._this_version
        in_flight = len(self.in_flight)
        if self.pace.queues:
            in_flight += self.accepted  # others take their place at the step, not before
        return self.pace.room(in_flight, self._this_version)

    def objection(self, client: ClientId) -> Reason | None:
        """Why this client in particular may not start now."""
        if client in self.training:
            return Reason.TRAINING
        if client in self.contributed:
            return Reason.CONTRIBUTED
        if self.ledger is not None and client in self.ledger.resting:  # a hint: `deliver` has the last word
            return self._limit_reached(client)
        return None

    def _limit_reached(self, client: ClientId) -> Reason | None:
        """Why this client may not take part in the step that is being filled."""
        if self.ledger is None or self.ledger.allows(client, self.version + 1):
            return None
        return Reason.FINISHED if self.ledger.finished(client) else Reason.RESTING

    def unavailable(self) -> tuple[set[ClientId], ...]:
        """Everybody who may not start now, whatever room there is, by the reason."""
        resting: set[ClientId] = self.ledger.resting if self.ledger is not None else set()
        return self.training, self.contributed, resting

    def check_in(self, client: ClientId, time: float) -> Ticket | Refusal:
        """A client offers to train: a ticket for the current version, or why not."""
        reason = self.objection(client)
        if reason is None and self.room() <= 0:
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

    def deliver(self, trip: int, time: float, examples: int = 1, refused: Reason | None = None) -> Delivery:
        """An upload has come in: whether it counts, how much, and whether the model moves now. `refused` is
        the reason why the caller, who can see its values, has decided that it does not count."""
        ticket = self.in_flight.get(trip)
        if ticket is None:
            reason = Reason.DUPLICATE if 0 <= trip < self.next_trip else Reason.UNKNOWN
            return Delivery(
                trip, None, None, time, None, self.version, None, 0.0, 0.0, False, reason, None, False
            )
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
            closes = self._step_if_full()
            return Delivery(
                trip, client, ticket.time, time, ticket.version, version, staleness,
                self._discount(staleness) * mass, mass, True, None, version + 1, closes,
            )  # fmt: skip
        if ticket.version == version:
            self._this_version -= 1
        return Delivery(
            trip, client, ticket.time, time, ticket.version, version, staleness,
            0.0, 0.0, False, refused, None, self._step_if_full(),
        )  # fmt: skip

    def give_up(self, trip: int) -> tuple[Ticket, bool] | None:
        """A client will not come back. Its ticket, and whether the model moves now (only where a step
        waits for everybody); nothing if there was no such trip under way."""
        ticket = self.in_flight.get(trip)
        if ticket is None:
            return None
        self._end(ticket)
        if ticket.version == self.version:
            self._this_version -= 1
        return ticket, self._step_if_full()

    def all_joined(self) -> bool:
        """Nobody else joins at this version (Poisson pace). Whether the model moves now: it does, with
        an empty buffer, if nobody joined at all."""
        self._joined = True
        return self._step_if_full()

    def _share(self) -> int | None:
        """How many uploads one client may have in the buffer that is being filled."""
        return 1 if self._in_opening else self.buffer.share

    def _contribute(self, client: ClientId) -> None:
        share = self._share()
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
        size = self.opening if self._in_opening else self.buffer.size
        if size is None:
            full = self._joined and self._waiting == 0
        else:
            full = self.accepted == size
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

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "version": self.version,
            "next_trip": self.next_trip,
            "accepted": self.accepted,
            "in_flight": [list(ticket) for ticket in self.in_flight.values()],
            "contributed": sorted(self.contributed, key=str),
            "contributions": sorted(([c, count] for c, count in self.contributions.items()), key=str),
            "this_version": self._this_version,
            "waiting": self._waiting,
            "joined": self._joined,
            "ledger": None if self.ledger is None else self.ledger.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
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
        if self.ledger is not None:
            self.ledger.restore(state["ledger"], self.version + 1)
        self._in_opening = self.opening > 0 and self.version == 0


__all__ = [
    "Asynchronous",
    "Bookkeeping",
    "Buffer",
    "ClientId",
    "Delivery",
    "Reason",
    "Refusal",
    "Ticket",
]
