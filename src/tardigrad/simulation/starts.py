"""Which clients start in virtual time, and when: one class for each kind of pace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import Draws, key, uniform
from tardigrad.core.pace import Arrivals, Poisson, SampledStaleness
from tardigrad.errors import ConfigError, RunError
from tardigrad.simulation.roster import Roster

Bits = Callable[[int, int], NDArray[np.uint64]]
"""bits(index, count) returns `count` uniform 64-bit numbers, always the same ones for the same index."""
StartsState = dict[str, float]
"""The contents of a snapshot of `Starts`: numbers and flags by name."""

ATTEMPTS = 16
"""How many clients are drawn at random before the eligible ones are listed."""
CROWDED = 0.9
"""If more than this share of the clients is training, listing the eligible ones is faster than drawing."""


class Starts:
    """Chooses clients. This class starts them whenever the pace has capacity; subclasses override when."""

    may_run_dry: ClassVar[bool] = False
    """Whether a run may end because no client starts any more."""
    joins: ClassVar[bool] = False
    """Whether bookkeeping must be told when all clients have joined."""

    def __init__(self, book: Bookkeeping, population: int, seed: int) -> None:
        self.book, self.population, self.seed = book, population, seed
        self.roster: Roster | None = None
        """Who is there, or None if everybody always is."""
        self._choices = [Draws(seed, f"client/{attempt}", uniform) for attempt in range(ATTEMPTS)]
        self._blocked = False  # no client may start until a trip has ended or, with a roster, somebody comes
        self._blocked_at = 0.0
        self._idle: set[int] | None = None
        """All clients that are not training, and some that are; None until it is needed."""
        self._left: bool | None = None  # whether a client may start, while no trip is under way

    def next_time(self, now: float) -> float:
        """Return when the next clients start; infinity if none does before a trip has ended."""
        if self.book.capacity() <= 0:
            return inf
        return now if not self._blocked else max(now, self._opens())

    def _opens(self) -> float:
        """Return when the next client comes after no client could start; infinity if none does."""
        if self.roster is None or self.nobody_left():
            return inf
        return self.roster.opens(self._blocked_at)

    def nobody_left(self) -> bool:
        """Return whether no trip is under way, so that nothing can change, and no client may start, even if
        it is there."""
        if self.book.in_flight:
            return False
        if self._left is None:
            self._left = len(set().union(*self.book.unavailable())) < self.population
        return not self._left

    def _block(self, time: float) -> None:
        self._blocked, self._blocked_at = True, time

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        """Yield each client that starts at this time, and the duration of its trip or None if it is drawn."""
        for _ in range(self.book.capacity()):
            client = self.choose(time)
            if client is None:
                self._block(time)
                return
            yield client, None

    def ended(self, client: int) -> None:
        """Note that a trip of this client has ended, so that clients may be able to start again."""
        self._blocked, self._left = False, None
        if self.roster is not None:
            self.roster.ended(client)
        elif self._idle is not None:
            self._idle.add(client)

    def choose(self, time: float, but: Collection[int] = ()) -> int | None:
        """Return a random client that may start now and is not in `but`, or None if there is none."""
        if self.roster is not None:
            return self.roster.choose(time, self.book, self._choices, but)
        objection, trip = self.book.objection, self.book.next_trip
        if len(self.book.training) <= CROWDED * self.population:
            for draws in self._choices:
                client = int(draws[trip] * self.population)
                if objection(client) is None and client not in but:
                    return client
        # List the eligible clients. One that is training is not looked at again until its trip has ended
        idle = set(range(self.population)) if self._idle is None else self._idle
        self._idle = idle = idle.difference(self.book.training)
        for others in (*self.book.unavailable(), but):  # one at a time: Python iterates over the smaller set
            idle = idle.difference(others)
        eligible = sorted(idle)
        return eligible[int(self._choices[0][trip] * len(eligible))] if eligible else None

    def state(self) -> StartsState:
        """Return the state that bookkeeping does not have, for a snapshot."""
        if self.roster is None:
            return {"blocked": self._blocked}
        return {"blocked": self._blocked, "blocked_at": self._blocked_at, "listing": self.roster.listing}

    def restore(self, state: StartsState) -> None:
        """Continue from a `state()`."""
        self._blocked = bool(state["blocked"])
        self._idle = self._left = None
        if self.roster is not None:
            self._blocked_at = state["blocked_at"]
            self.roster.restore(bool(state["listing"]))


class ClosedLoop(Starts):
    """As many clients train as the pace allows: asynchronous, a synchronous cohort, or queued tasks."""

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        return self._queue(time) if self.book.pace.queues else super().clients(time)

    def _queue(self, time: float) -> Iterator[tuple[int, float | None]]:
        """Yield clients, also ones that are training, and none twice until all have been drawn."""
        drawn: set[int] = set()
        for _ in range(self.book.capacity()):
            client = self.choose(time, drawn)
            if client is None:
                drawn.clear()
                client = self.choose(time)
            if client is None:
                self._block(time)
                return
            drawn.add(client)
            yield client, None


class OpenLoop(Starts):
    """Clients arrive at a fixed rate, whether or not others are training."""

    def __init__(self, book: Bookkeeping, population: int, seed: int, pace: Arrivals) -> None:
        super().__init__(book, population, seed)
        self._gap = 1.0 / pace.rate
        self._gaps = Draws(seed, "arrival", lambda random, n: random.exponential(1.0, n))
        self._random = pace.process == "poisson"
        self._turned_up = 0
        self._next = 0.0

    def next_time(self, now: float) -> float:
        if self._blocked and not self.book.in_flight and self._opens() == inf:
            return inf  # nobody ever comes again
        return self._next

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        client = None  # if all are training, or nobody is there
        if not self._blocked or self._opens() <= time:
            client = self.choose(time)
            self._blocked, self._blocked_at = client is None, time
        self._turned_up += 1
        if self._random:
            self._next = time + self._gap * self._gaps[self._turned_up]
        else:
            self._next = self._turned_up * self._gap
        if client is not None:
            yield client, None

    def state(self) -> StartsState:
        return super().state() | {"turned_up": self._turned_up, "next": self._next}

    def restore(self, state: StartsState) -> None:
        super().restore(state)
        self._turned_up, self._next = int(state["turned_up"]), state["next"]


class PoissonJoining(Starts):
    """At each version every idle client joins with the same probability.

    `bits`: the source of randomness, in place of the seed.
    """

    joins: ClassVar[bool] = True

    def __init__(
        self, book: Bookkeeping, population: int, seed: int, pace: Poisson, bits: Bits | None = None
    ) -> None:
        super().__init__(book, population, seed)
        self._probability = pace.probability
        self._bits = bits
        self._asked = 0  # how often the population was sampled
        self._version = -1  # the version at which it was sampled last

    def next_time(self, now: float) -> float:
        # again at the same version only if no trip is under way and the buffer is still not full
        if self.book.version <= self._version and self.book.in_flight:
            return inf
        if self.nobody_left():
            return inf
        return now if self.roster is None else self.roster.somebody(now, self.book)

    def nobody_left(self) -> bool:
        if self.book.buffer.size is not None:
            self._left = None  # a step may have been made since
            return super().nobody_left()
        ledger = self.book.ledger  # empty steps are made, so that clients that rest may start again
        return (
            not self.book.in_flight
            and ledger is not None
            and len(ledger.entries) == self.population
            and all(map(ledger.finished, ledger.entries))
        )

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        joining = self._joining(self._asked)
        self._asked += 1
        self._version = self.book.version
        for client in joining:
            if self.book.objection(client) is None and (
                self.roster is None or self.roster.there(client, time)
            ):
                yield client, None

    def _joining(self, asked: int) -> list[int]:
        """Return the clients of the sample number `asked`."""
        if self._bits is not None:  # each client independently; the probability is exact to 2^-64
            below = int(self._probability * 2**64)
            bits = self._bits(asked, self.population)
            joins = bits < np.uint64(below) if below < 2**64 else np.ones(self.population, dtype=bool)
            return np.flatnonzero(joins).tolist()
        random = np.random.default_rng(key(self.seed, "join", asked))
        count = int(random.binomial(self.population, self._probability))
        return random.choice(self.population, size=count, replace=False).tolist()

    def state(self) -> StartsState:
        return super().state() | {"asked": self._asked, "version": self._version}

    def restore(self, state: StartsState) -> None:
        super().restore(state)
        self._asked, self._version = int(state["asked"]), int(state["version"])


class SampledStarts(Starts):
    """One upload arrives per unit of time, and its trip started a random number of versions earlier.

    Upload n arrives at n + 1; with a buffer of K, version v exists from time K v on.
    """

    def __init__(self, book: Bookkeeping, population: int, seed: int, pace: SampledStaleness) -> None:
        super().__init__(book, population, seed)
        self._maximum = pace.maximum
        self._staleness = Draws(seed, "staleness", lambda random, n: random.integers(0, pace.maximum + 1, n))
        self._version = 0  # the version from which clients start next

    def next_time(self, now: float) -> float:
        assert self.book.buffer.size is not None
        return float(self._version * self.book.buffer.size)

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        size, version = self.book.buffer.size, self._version
        assert size is not None
        self._version += 1
        for upload in range(version * size, (version + self._maximum + 1) * size):
            if max(0, upload // size - int(self._staleness[upload])) == version:
                client = self.choose(time)
                if client is None and len(self.book.training) < self.population:
                    raise RunError(
                        f"nobody is left to train at version {version}: clients that are not training took "
                        "part as often or as recently as privacy or the buffer allows; lower "
                        "privacy.separation or the number of steps, raise buffer.most_per_client, or have "
                        "more clients"
                    )
                if client is None:
                    raise ConfigError(
                        f"pace.maximum: a staleness of up to {self._maximum} with buffer.size {size} needs "
                        f"more than {self.population} clients, because each trains one trip at a time"
                    )
                yield client, upload + 1 - time

    def state(self) -> StartsState:
        return super().state() | {"version": self._version}

    def restore(self, state: StartsState) -> None:
        super().restore(state)
        self._version = int(state["version"])


class Script(Starts):
    """Clients make exactly the trips of a list."""

    may_run_dry: ClassVar[bool] = True

    def __init__(
        self, book: Bookkeeping, population: int, seed: int, trips: list[tuple[float, float, int]]
    ) -> None:
        super().__init__(book, population, seed)
        self._trips = sorted(trips, key=lambda trip: trip[0])  # stable: ties keep the order of the list
        began: dict[int, float] = {}
        busy: dict[int, float] = {}
        for start, duration, client in self._trips:
            if client >= population:
                raise ConfigError(
                    f"pace: a trip of client {client}, but the clients are 0 to {population - 1}"
                )
            if start < busy.get(client, 0.0) or start == began.get(client):
                raise ConfigError(
                    f"pace: client {client} would start at {start:g} while it trains until "
                    f"{busy[client]:g}; a client makes one trip at a time"
                )
            began[client], busy[client] = start, start + duration
        self._done = 0

    def next_time(self, now: float) -> float:
        return self._trips[self._done][0] if self._done < len(self._trips) else inf

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        while self._done < len(self._trips) and self._trips[self._done][0] == time:
            _, duration, client = self._trips[self._done]
            self._done += 1
            yield client, duration

    def state(self) -> StartsState:
        return super().state() | {"done": self._done}

    def restore(self, state: StartsState) -> None:
        super().restore(state)
        self._done = int(state["done"])
