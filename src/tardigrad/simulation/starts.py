"""When clients turn up in virtual time, and which: one class for each way a pace can go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import Draws, key, uniform
from tardigrad.core.pace import Arrivals, Poisson, SampledStaleness
from tardigrad.errors import ConfigError

Bits = Callable[[int, int], NDArray[np.uint64]]
"""bits(index, count): so many uniform 64-bit numbers, the same again for the same index."""

ATTEMPTS = 16
CROWDED = 0.9
"""Where a larger share of the clients is at work, trying at random takes longer than looking who is left."""


class Starts:
    """Closed loop: clients start whenever there is room. The other ways override when."""

    may_run_dry: ClassVar[bool] = False
    """Whether it is in order that nobody starts any more."""
    joins: ClassVar[bool] = False
    """Whether bookkeeping must be told that all have joined."""

    def __init__(self, book: Bookkeeping, population: int, seed: int) -> None:
        self.book, self.population, self.seed = book, population, seed
        self._choices = [Draws(seed, f"client/{attempt}", uniform) for attempt in range(ATTEMPTS)]
        self._blocked = False  # nobody may start until a trip has ended
        self._idle: set[int] | None = None
        """Who is not at work, and some who are; made when it is crowded."""

    def next_time(self, now: float) -> float:
        """When the next clients start; infinity if not before a trip has ended."""
        return inf if self._blocked or self.book.room() <= 0 else now

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        """Who starts at this time, and how long the trip takes where that is fixed."""
        for _ in range(self.book.room()):
            client = self.choose()
            if client is None:
                self._blocked = True
                return
            yield client, None

    def ended(self, client: int) -> None:
        """A trip of this client has ended: there may be room again."""
        self._blocked = False
        if self._idle is not None:
            self._idle.add(client)

    def choose(self, but: Collection[int] = ()) -> int | None:
        """A random client that may start now, and is not one of `but`; or nobody."""
        objection, trip = self.book.objection, self.book.next_trip
        if len(self.book.training) <= CROWDED * self.population:
            for draws in self._choices:
                client = int(draws[trip] * self.population)
                if objection(client) is None and client not in but:
                    return client
        # crowded: find out who is left. Who is at work need not be looked at again until its trip has ended
        idle = set(range(self.population)) if self._idle is None else self._idle
        self._idle = idle = idle.difference(self.book.training)
        for others in (*self.book.unavailable(), but):  # one at a time: Python takes the smaller set then
            idle = idle.difference(others)
        eligible = sorted(idle)
        return eligible[int(self._choices[0][trip] * len(eligible))] if eligible else None

    def state(self) -> dict[str, Any]:
        """What is not in bookkeeping, as JSON."""
        return {"blocked": self._blocked}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self._blocked = state["blocked"]
        self._idle = None


class ClosedLoop(Starts):
    """As many at work as the pace allows: asynchronous, a synchronous cohort, or tasks that queue."""

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        return self._queue() if self.book.pace.queues else super().clients(time)

    def _queue(self) -> Iterator[tuple[int, float | None]]:
        """Who is at work may be drawn too, but nobody twice at once, unless more are drawn than there are."""
        drawn: set[int] = set()
        for _ in range(self.book.room()):
            client = self.choose(drawn)
            if client is None:
                drawn.clear()
                client = self.choose()
            if client is None:
                self._blocked = True
                return
            drawn.add(client)
            yield client, None


class OpenLoop(Starts):
    """Clients turn up at a rate of their own."""

    def __init__(self, book: Bookkeeping, population: int, seed: int, pace: Arrivals) -> None:
        super().__init__(book, population, seed)
        self._gap = 1.0 / pace.rate
        self._gaps = Draws(seed, "arrival", lambda random, n: random.exponential(1.0, n))
        self._random = pace.process == "poisson"
        self._turned_up = 0
        self._next = 0.0

    def next_time(self, now: float) -> float:
        return self._next

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        client = self.choose()  # nobody, if all are at work
        self._turned_up += 1
        if self._random:
            self._next = time + self._gap * self._gaps[self._turned_up]
        else:
            self._next = self._turned_up * self._gap
        if client is not None:
            yield client, None

    def state(self) -> dict[str, Any]:
        return super().state() | {"turned_up": self._turned_up, "next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._turned_up, self._next = state["turned_up"], state["next"]


class PoissonJoining(Starts):
    """At each version every idle client joins with the same probability.

    `bits`: where it is drawn from, in place of the seed.
    """

    joins: ClassVar[bool] = True

    def __init__(
        self, book: Bookkeeping, population: int, seed: int, pace: Poisson, bits: Bits | None = None
    ) -> None:
        super().__init__(book, population, seed)
        self._probability = pace.probability
        self._bits = bits
        self._asked = 0  # how often the whole population was asked
        self._version = -1  # the version at which it was asked last

    def next_time(self, now: float) -> float:
        # again at the same version only if everybody came back and the buffer is still not full
        due = self.book.version > self._version or not self.book.in_flight
        return now if due else inf

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        joining = self._joining(self._asked)
        self._asked += 1
        self._version = self.book.version
        for client in joining:
            if self.book.objection(client) is None:
                yield client, None

    def _joining(self, asked: int) -> list[int]:
        """Who joins when the population is asked for this time."""
        if self._bits is not None:  # each by itself, to 2^-64
            below = int(self._probability * 2**64)
            bits = self._bits(asked, self.population)
            joins = bits < np.uint64(below) if below < 2**64 else np.ones(self.population, dtype=bool)
            return np.flatnonzero(joins).tolist()
        random = np.random.default_rng(key(self.seed, "join", asked))
        count = int(random.binomial(self.population, self._probability))
        return random.choice(self.population, size=count, replace=False).tolist()

    def state(self) -> dict[str, Any]:
        return super().state() | {"asked": self._asked, "version": self._version}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._asked, self._version = state["asked"], state["version"]


class SampledStarts(Starts):
    """Uploads arrive one per unit of time, and start as many versions earlier as was drawn.

    Upload n arrives at n + 1; with a buffer of K, version v exists from time K v on.
    """

    def __init__(self, book: Bookkeeping, population: int, seed: int, pace: SampledStaleness) -> None:
        super().__init__(book, population, seed)
        self._maximum = pace.maximum
        self._staleness = Draws(seed, "staleness", lambda random, n: random.integers(0, pace.maximum + 1, n))
        self._version = 0  # whose clients start next

    def next_time(self, now: float) -> float:
        assert self.book.buffer.size is not None
        return float(self._version * self.book.buffer.size)

    def clients(self, time: float) -> Iterator[tuple[int, float | None]]:
        size, version = self.book.buffer.size, self._version
        assert size is not None
        self._version += 1
        for upload in range(version * size, (version + self._maximum + 1) * size):
            if max(0, upload // size - int(self._staleness[upload])) == version:
                client = self.choose()
                if client is None:
                    raise ConfigError(
                        f"pace.maximum: a staleness of up to {self._maximum} with buffer.size {size} needs "
                        f"more than {self.population} clients, for each trains one trip at a time"
                    )
                yield client, upload + 1 - time

    def state(self) -> dict[str, Any]:
        return super().state() | {"version": self._version}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._version = state["version"]


class Script(Starts):
    """Exactly the trips of a list."""

    may_run_dry: ClassVar[bool] = True

    def __init__(
        self, book: Bookkeeping, population: int, seed: int, trips: list[tuple[float, float, int]]
    ) -> None:
        super().__init__(book, population, seed)
        self._trips = sorted(trips, key=lambda trip: trip[0])  # stable: ties in the order of the list
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

    def state(self) -> dict[str, Any]:
        return super().state() | {"done": self._done}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._done = state["done"]
