"""Presence: who is there at a time, from the settings of `simulation/availability.py`.

Whether a client is there is a function of (seed, client, time) that can be asked in any order, so that it
has no state and nothing of it is in a snapshot. Each question is answered for one client, and for many at
once with NumPy; both answers are the same to the bit, because they use only operations that are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.draws import key
from tardigrad.simulation.availability import DayNight, Windows

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
FEW = 64
"""So few clients are asked one by one, which is faster than NumPy."""


class Openings(NamedTuple):
    """The windows that open in a stretch of time."""

    until: float
    """The end of the stretch, which is part of it; infinity if nothing opens after these."""
    times: NDArray[np.float64]
    """In ascending order. A time at which the client was there already may be among them."""
    clients: Numbers


class Outlook(NamedTuple):
    """Some clients at a time: whether each is there, and until when it certainly stays there or away."""

    there: Flags
    until: NDArray[np.float64]
    """It may change then, or later."""


class Presence(ABC):
    """Answers who is there. A client is there from the beginning of a window until just before its end."""

    def __init__(self, population: int) -> None:
        self.population = population

    @abstractmethod
    def there(self, client: int, time: float) -> bool:
        """Return whether a client is there."""

    @abstractmethod
    def leaves(self, client: int, start: float, end: float) -> float | None:
        """Return when a client that is there at `start` leaves, or None if it stays until `end`."""

    @abstractmethod
    def which(self, clients: Numbers, time: float) -> Flags:
        """Return for each of the clients whether it is there."""

    def outlook(self, clients: Numbers, time: float) -> Outlook | None:
        """Return for each of the clients whether it is there, and for how long; None if that takes as long as
        to ask for one after the other."""
        return None

    @abstractmethod
    def openings(self, after: float) -> Openings:
        """Return what opens next, after this time."""

    def everybody(self, time: float) -> Numbers:
        """Return all clients that are there, in ascending order."""
        return np.flatnonzero(self.which(np.arange(self.population), time))

    def never_there(self, until: float) -> int:
        """Return how many clients are not there at any time from 0 to `until`."""
        seen = np.zeros(self.population, dtype=bool)
        seen[self.everybody(0.0)] = True
        time = 0.0
        while time < until and not seen.all():
            found = self.openings(time)
            seen[found.clients[found.times <= until]] = True
            time = found.until
        return int(self.population - seen.sum())


class InZones(Presence):
    """Day and night: every client is there for a part of each day of its time zone."""

    def __init__(self, law: DayNight, population: int, seed: int) -> None:
        super().__init__(population)
        self._period, self._on = law.period, law.on
        self._mornings = [zone * law.period / law.zones for zone in range(law.zones)]
        random = np.random.default_rng(key(seed, "time zone"))
        self._zones = random.integers(0, law.zones, population, dtype=np.int32)
        self._zone_of: list[int] = self._zones.tolist()
        self._days = [self._day(zone, 0.0) for zone in range(law.zones)]  # a cache

    def _day(self, zone: int, time: float) -> tuple[float, float, float]:
        """Return the day of a zone that a time is in: when its window opens and closes, and when the next
        day's opens."""
        first, period = self._mornings[zone], self._period
        day = (time - first) // period
        if first + day * period > time:  # the division was rounded
            day -= 1
        elif first + (day + 1) * period <= time:
            day += 1
        morning = first + day * period
        return morning, morning + self._on, first + (day + 1) * period

    def _today(self, client: int, time: float) -> tuple[float, float, float]:
        zone = self._zone_of[client]
        today = self._days[zone]
        if not today[0] <= time < today[2]:
            today = self._days[zone] = self._day(zone, time)
        return today

    def there(self, client: int, time: float) -> bool:
        return time < self._today(client, time)[1]

    def leaves(self, client: int, start: float, end: float) -> float | None:
        evening = self._today(client, start)[1]
        return evening if evening < end else None

    def which(self, clients: Numbers, time: float) -> Flags:
        return self.outlook(clients, time).there

    def outlook(self, clients: Numbers, time: float) -> Outlook:
        days = [self._day(zone, time) for zone in range(len(self._mornings))]
        there = np.array([time < evening for _, evening, _ in days])
        until = np.array([evening if time < evening else morning for _, evening, morning in days])
        zones = self._zones[clients]
        return Outlook(there[zones], until[zones])

    def openings(self, after: float) -> Openings:
        mornings = [self._day(zone, after)[2] for zone in range(len(self._mornings))]
        time = min(mornings)
        opening = np.array([morning == time for morning in mornings])
        clients = np.flatnonzero(opening[self._zones])
        return Openings(time, np.full(len(clients), time), clients)


class Recorded(Presence):
    """Windows that were recorded."""

    def __init__(self, windows: Windows, population: int) -> None:
        super().__init__(population)
        self._bounds = array("d")  # beginnings and ends in turn, client by client
        self._first = array("q", [0])  # where the bounds of each client begin
        for client in range(population):
            for window in windows.get(client, ()):
                self._bounds.extend(window)
            self._first.append(len(self._bounds))
        starts = np.array(self._bounds[::2])
        clients = np.repeat(np.arange(population), np.diff(np.array(self._first)) // 2)
        order = np.argsort(starts, kind="stable")
        self._starts, self._clients = starts[order], clients[order]

    def _passed(self, client: int, time: float) -> int:
        """Return how many bounds of a client are not after this time; it is there if the number is odd."""
        first = self._first[client]
        return bisect_right(self._bounds, time, first, self._first[client + 1]) - first

    def there(self, client: int, time: float) -> bool:
        return self._passed(client, time) % 2 == 1

    def leaves(self, client: int, start: float, end: float) -> float | None:
        leaves = self._bounds[self._first[client] + self._passed(client, start)]
        return leaves if leaves < end else None

    def which(self, clients: Numbers, time: float) -> Flags:
        return np.array([self.there(client, time) for client in clients.tolist()], dtype=bool)

    def everybody(self, time: float) -> Numbers:
        begun = self._clients[: int(np.searchsorted(self._starts, time, "right"))]
        some: Numbers = np.unique(begun)
        return some[self.which(some, time)]

    def openings(self, after: float) -> Openings:
        begin = int(np.searchsorted(self._starts, after, "right"))
        return Openings(inf, self._starts[begin:], self._clients[begin:])
