"""Presence: who is there at a time, from the settings of `simulation/availability.py`.

Whether a client is there is a function of (seed, client, time) that can be asked in any order, so that it has no
state and nothing of it is in a snapshot. Each question is answered for one client, and for many at once with
NumPy; both answers are the same to the bit, because they use only operations that are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from math import exp, floor, frexp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.draws import key
from tardigrad.simulation.availability import (
    Always,
    Availability,
    AvailabilityTrace,
    DayNight,
    OnOff,
    Windows,
    read_windows,
)

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Openings(NamedTuple):
    """The windows that open in a stretch of time."""

    until: float
    """The end of the stretch, which is part of it; infinity if nothing opens after these."""
    times: NDArray[np.float64]
    """In ascending order. A time at which the client was there already may be among them."""
    clients: Numbers


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


class InZones(Presence):
    """Day and night: every client is there for a part of each day of its time zone."""

    def __init__(self, law: DayNight, population: int, seed: int) -> None:
        super().__init__(population)
        self._period, self._on = law.period, law.on
        self._mornings = [zone * law.period / law.zones for zone in range(law.zones)]
        random = np.random.default_rng(key(seed, "time zone"))
        self._zones = random.integers(0, law.zones, population, dtype=np.int32)
        self._zone_of: list[int] = self._zones.tolist()

    def _morning(self, zone: int, time: float, later: int = 0) -> float:
        """Return when the last window of a zone began, at this time or before; or so many days later."""
        first, period = self._mornings[zone], self._period
        day = (time - first) // period
        if first + day * period > time:  # the division was rounded
            day -= 1
        elif first + (day + 1) * period <= time:
            day += 1
        return first + (day + later) * period

    def there(self, client: int, time: float) -> bool:
        return time < self._morning(self._zone_of[client], time) + self._on

    def leaves(self, client: int, start: float, end: float) -> float | None:
        evening = self._morning(self._zone_of[client], start) + self._on
        return evening if evening < end else None

    def which(self, clients: Numbers, time: float) -> Flags:
        awake = [time < self._morning(zone, time) + self._on for zone in range(len(self._mornings))]
        flags: Flags = np.array(awake)[self._zones[clients]]
        return flags

    def openings(self, after: float) -> Openings:
        mornings = [self._morning(zone, after, later=1) for zone in range(len(self._mornings))]
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


# -- exponential times -----------------------------------------------------------------------------

_MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_CELL = 0xD1342543DE82EF95


def _mix(x: int) -> int:
    """Return 64 bits that look random: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def _mix_all(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `_mix` of each."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


class ComingAndGoing(Presence):
    """Exponential times there and away.

    With the rates a of leaving and b of coming, this Markov chain is the same as one that is drawn anew at the
    times of a Poisson process with rate a + b, each time "there" with probability b / (a + b). So time is cut
    into cells; the draws in a cell (their number, times and outcomes) depend only on (seed, client, cell); and
    whether a client is there is the outcome of the last draw. A cell's length is a power of two, so that all
    arithmetic on it is exact.
    """

    def __init__(self, law: OnOff, population: int, seed: int) -> None:
        super().__init__(population)
        rate = 1.0 / law.on + 1.0 / law.off
        self._length = 2.0 ** (frexp(1.0 / rate)[1] - 1)  # between half the mean time of a draw and all of it
        self._there = int(law.on / (law.on + law.off) * 2**32)
        self._seed = _mix(key(seed, "on off"))
        self._counts = _poisson_bounds(rate * self._length)

    def _draws(self, client: int, cell: int) -> list[tuple[float, bool]]:
        """Return the draws in a cell: time and outcome, in order."""
        base = _mix((self._seed + client * _STEP + cell * _CELL) & _MASK)
        number = bisect_right(self._counts, base >> 32)
        if number == 0:
            return []
        found = []
        for n in range(1, number + 1):
            bits = _mix((base + n * _STEP) & _MASK)
            moment = (cell + ((bits >> 32) + 1) * 2.0**-32) * self._length  # in the cell or at its end
            found.append((moment, bits & 0xFFFFFFFF < self._there))
        found.sort()
        return found

    def there(self, client: int, time: float) -> bool:
        cell = floor(time / self._length)
        for moment, outcome in reversed(self._draws(client, cell)):
            if moment <= time:
                return outcome
        while True:
            cell -= 1
            draws = self._draws(client, cell)
            if draws:
                return draws[-1][1]

    def leaves(self, client: int, start: float, end: float) -> float | None:
        for cell in range(floor(start / self._length), floor(end / self._length) + 1):
            for moment, outcome in self._draws(client, cell):
                if moment > start and not outcome:
                    return moment if moment < end else None
        return None

    def _cell(self, clients: NDArray[np.uint64], cell: int) -> tuple[NDArray[np.uint64], Numbers]:
        """Return the bits that the draws of each client in a cell come from, and their number."""
        offset = np.uint64((self._seed + cell * _CELL) & _MASK)
        base = _mix_all(clients * np.uint64(_STEP) + offset)
        counts = np.array(self._counts, dtype=np.uint64)
        return base, np.searchsorted(counts, base >> np.uint64(32), "right")

    def _draw(self, base: NDArray[np.uint64], n: int, cell: int) -> tuple[NDArray[np.float64], Flags]:
        """Return time and outcome of the n-th draw in a cell."""
        bits = _mix_all(base + np.uint64((n * _STEP) & _MASK))
        moments = (cell + ((bits >> np.uint64(32)) + np.uint64(1)) * 2.0**-32) * self._length
        return moments, (bits & np.uint64(0xFFFFFFFF)) < np.uint64(self._there)

    def which(self, clients: Numbers, time: float) -> Flags:
        flags = np.zeros(len(clients), dtype=bool)
        open_ = np.arange(len(clients))  # those whose last draw is not found yet
        cell = floor(time / self._length)
        while len(open_):
            base, number = self._cell(clients[open_].astype(np.uint64), cell)
            last = np.full(len(open_), -inf)
            for n in range(1, int(number.max()) + 1):
                some = np.flatnonzero(number >= n)
                moments, outcomes = self._draw(base[some], n, cell)
                # of two draws at one moment, `there` wins, as it does when pairs are sorted
                later = (moments <= time) & (moments >= last[some])
                wins = later & (outcomes | (moments > last[some]))
                last[some[later]] = moments[later]
                flags[open_[some[wins]]] = outcomes[wins]
            open_ = open_[last == -inf]
            cell -= 1
        return flags

    def openings(self, after: float) -> Openings:
        everybody = np.arange(self.population, dtype=np.uint64)
        cell = floor(after / self._length)
        base, number = self._cell(everybody, cell)
        times, clients = [], []
        for n in range(1, int(number.max(initial=0)) + 1):
            some = np.flatnonzero(number >= n)
            moments, outcomes = self._draw(base[some], n, cell)
            opens = outcomes & (moments > after)
            times.append(moments[opens])
            clients.append(some[opens])
        until = (cell + 1) * self._length
        found, who = np.concatenate([np.empty(0), *times]), np.concatenate([np.empty(0, int), *clients])
        order = np.lexsort((who, found))
        return Openings(until, found[order], who[order])


def _poisson_bounds(mean: float) -> list[int]:
    """Return the cumulated probabilities of a Poisson law, as 32-bit numbers: a random one is below the first
    for 0 events, below the second for 1, and so on."""
    bounds, chance, total = [], exp(-mean), 0.0
    for n in range(64):
        total += chance
        bound = min(int(total * 2**32), 2**32)
        if bounds and bound == bounds[-1]:
            break
        bounds.append(bound)
        chance *= mean / (n + 1)
    return bounds
