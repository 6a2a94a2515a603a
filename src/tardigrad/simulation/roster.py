"""The roster: chooses among the clients that are there.

Clients are drawn at random until one is there and may start. If that takes too many draws, the roster lists
those who are there, and from then on keeps the list up to date with the windows that open, until enough
clients are there again. The list is only a cache: whom the roster chooses depends on the trip, the time and
whether it lists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

import numpy as np

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import BLOCK, Draws, key
from tardigrad.simulation.availability import (
    Always,
    Availability,
    AvailabilityTrace,
    DayNight,
    OnOff,
    read_windows,
)
from tardigrad.simulation.on_off_presence import ComingAndGoing
from tardigrad.simulation.presence import FEW, InZones, Presence, Recorded

MORE = 1024
"""How many clients are drawn at once after the first draws have found nobody."""


class Roster:
    """The clients that are there and not training."""

    def __init__(self, presence: Presence, seed: int) -> None:
        self._presence, self._seed = presence, seed
        self._population = presence.population
        self._enough = max(FEW, self._population // 512)
        self._number = -1  # of the block of trips that `_drawn` is of: a cache
        self._drawn: list[list[int]] = []  # the clients that are drawn for these trips, by attempt
        self.listing = False
        """Whether clients are chosen from the list, and not drawn."""
        self._idle: set[int] | None = None
        """All clients that are there and not training, and some others; None until it is needed."""
        self._coming: list[tuple[float, int]] = []  # windows that open, the next one last
        self._until = 0.0  # windows that open later are not in `_coming`

    def there(self, client: int, time: float) -> bool:
        """Return whether a client is there."""
        return self._presence.there(client, time)

    def ended(self, client: int) -> None:
        """Note that a trip of this client has ended."""
        if self._idle is not None:
            self._idle.add(client)

    def choose(
        self, time: float, book: Bookkeeping, choices: Sequence[Draws], but: Collection[int] = ()
    ) -> int | None:
        """Return a random client that is there, may start now and is not in `but`; None if there is none.
        `choices`: uniform draws by trip."""
        objection, there, trip = book.objection, self._presence.there, book.next_trip
        if not self.listing:
            number, offset = divmod(trip, BLOCK)
            if number != self._number:
                self._number, self._drawn = number, []
            for attempt, draws in enumerate(choices):
                if attempt == len(self._drawn):
                    drawn = np.array(draws.block(number)) * self._population
                    self._drawn.append(drawn.astype(np.int64).tolist())
                client = self._drawn[attempt][offset]
                if there(client, time) and objection(client) is None and client not in but:
                    return client
            random = np.random.default_rng(key(self._seed, "more clients", trip))
            for some in np.split(random.integers(0, self._population, MORE), [FEW // 2]):
                for client in some[self._presence.which(some, time)].tolist():
                    if objection(client) is None and client not in but:
                        return client
            self.listing = True
        eligible = self._there(time, book)
        for others in (*book.unavailable(), but):
            eligible = eligible.difference(others)
        self.listing = len(eligible) <= self._enough
        if not eligible:
            return None
        return sorted(eligible)[int(choices[0][trip] * len(eligible))]

    def somebody(self, now: float, book: Bookkeeping) -> float:
        """Return from when on there is a client that may start, if no trip ends before; infinity if none ever
        comes."""
        random = np.random.default_rng(key(self._seed, "somebody", book.version))
        some = random.integers(0, self._population, MORE)
        if any(book.objection(client) is None for client in some[self._presence.which(some, now)].tolist()):
            return now
        eligible = self._there(now, book)
        for others in book.unavailable():
            eligible = eligible.difference(others)
        return now if eligible else self.opens(now)

    def opens(self, after: float) -> float:
        """Return when the next window opens after a time; infinity if none does. The time must be that of the
        last choice, or later with none that opened in between."""
        if self._idle is None:
            self._list(after)
        while not self._coming and self._until < inf:
            self._read()
        return self._coming[-1][0] if self._coming else inf

    def restore(self, listing: bool) -> None:
        """Continue from a snapshot."""
        self.listing, self._idle = listing, None

    def _list(self, time: float) -> None:
        self._idle = set(self._presence.everybody(time).tolist())
        self._coming, self._until = [], time

    def _read(self) -> None:
        """Add the windows that open next to `_coming`, which is empty."""
        until, times, clients = self._presence.openings(self._until)
        self._coming = list(zip(times[::-1].tolist(), clients[::-1].tolist()))
        self._until = until

    def _there(self, time: float, book: Bookkeeping) -> set[int]:
        """Return all clients that are there and, unless tasks queue, not training."""
        if self._idle is not None:
            self._come(time)
            if self._until < time:
                self._read()
                self._come(time)
        if self._idle is None or self._until < time:  # out of date by more than one stretch of time
            self._list(time)
            assert self._idle is not None
        idle = self._idle.difference(book.training)
        if len(idle) <= FEW:
            self._idle = {client for client in idle if self._presence.there(client, time)}
        else:
            some = np.array(list(idle))
            self._idle = set(some[self._presence.which(some, time)].tolist())
        return self._idle

    def _come(self, time: float) -> None:
        assert self._idle is not None
        while self._coming and self._coming[-1][0] <= time:
            self._idle.add(self._coming.pop()[1])


def make_presence(availability: Availability, population: int, seed: int) -> Presence | None:
    """Return who is there, or None if everybody always is."""
    match availability:
        case DayNight():
            return None if availability.on == availability.period else InZones(availability, population, seed)
        case OnOff():
            return ComingAndGoing(availability, population, seed)
        case AvailabilityTrace():
            return Recorded(read_windows(availability.file, population), population)
        case Always():
            return None
