"""Presence with exponential times there and away, as a function of (seed, client, time) without any state."""

from __future__ import annotations

from bisect import bisect_right
from math import exp, frexp, inf

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.draws import key
from tardigrad.simulation.availability import OnOff
from tardigrad.simulation.presence import FEW, Flags, Numbers, Openings, Outlook, Presence

Words = NDArray[np.uint64]
_MASK = 2**64 - 1
_STEP, _CELL = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_PART = 2**20
"""The number of values of 20 bits. In a draw of 64 bits, 20 give the time in its cell and 20 the outcome; in
the first draw of a cell, the other 24 give the number of draws."""


def _mix(x: int) -> int:
    """Return 64 bits that look random: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def _mix_all(x: Words) -> Words:
    """Return `_mix` of each."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


class ComingAndGoing(Presence):
    """Exponential times there and away.

    With the rates a of leaving and b of coming, this Markov chain is the same as one that is drawn anew at
    the times of a Poisson process with rate a + b, each time "there" with probability b / (a + b). So time
    is cut into cells; the draws in a cell (their number, times and outcomes) depend only on (seed, client,
    cell); and whether a client is there is the outcome of the last draw. A cell's length is a power of two,
    so that all arithmetic on it is exact.
    """

    def __init__(self, law: OnOff, population: int, seed: int) -> None:
        super().__init__(population)
        rate = 1.0 / law.on + 1.0 / law.off
        self._length = 2.0 ** (
            frexp(1.0 / rate)[1] - 1
        )  # between half the mean time between draws and all of it
        self._tick = self._length / _PART
        self._there = int(law.on / (law.on + law.off) * _PART)
        self._seed = _mix(key(seed, "on off"))
        self._counts = _poisson_bounds(rate * self._length)
        self._none, self._one = self._counts[0], self._counts[1]

    def _draws(self, client: int, cell: int) -> list[tuple[float, bool]]:
        """Return the draws in a cell: time and outcome, in order. A draw is in the cell or at its end."""
        bits = base = _mix((self._seed + client * _STEP + cell * _CELL) & _MASK)
        number = base >> 40
        if number < self._none:
            return []
        begin, tick, there = cell * self._length, self._tick, self._there
        found = [(begin + ((bits >> 20 & 0xFFFFF) + 1) * tick, bits & 0xFFFFF < there)]
        if number >= self._one:
            for n in range(1, bisect_right(self._counts, number)):
                bits = _mix((base + n * _STEP) & _MASK)
                found.append((begin + ((bits >> 20 & 0xFFFFF) + 1) * tick, bits & 0xFFFFF < there))
            found.sort()
        return found

    def there(self, client: int, time: float) -> bool:
        return self._last_draw(client, int(time // self._length), time)

    def _last_draw(self, client: int, cell: int, time: float) -> bool:
        """Return what the last draw at this time or before has come to; the time is in the cell."""
        for moment, outcome in reversed(self._draws(client, cell)):
            if moment <= time:
                return outcome
        while True:
            cell -= 1
            draws = self._draws(client, cell)
            if draws:
                return draws[-1][1]

    def leaves(self, client: int, start: float, end: float) -> float | None:
        for cell in range(int(start // self._length), int(end // self._length) + 1):
            for moment, outcome in self._draws(client, cell):
                if not outcome and moment > start:
                    return moment if moment < end else None
        return None

    def _cell(self, clients: Words, cell: int) -> tuple[Words, Numbers]:
        """Return the bits that the draws of each client in a cell come from, and how many draws there are."""
        offset = np.uint64((self._seed + cell * _CELL) & _MASK)
        base = _mix_all(clients * np.uint64(_STEP) + offset)
        counts = np.array(self._counts, dtype=np.uint64)
        return base, np.searchsorted(counts, base >> np.uint64(40), "right")

    def _draw(self, base: Words, n: int, cell: int) -> tuple[NDArray[np.float64], Flags]:
        """Return time and outcome of the n-th draw in a cell, counted from 0."""
        bits = base if n == 0 else _mix_all(base + np.uint64((n * _STEP) & _MASK))
        ticks = (bits >> np.uint64(20) & np.uint64(0xFFFFF)) + np.uint64(1)
        moments: NDArray[np.float64] = cell * self._length + ticks.astype(np.float64) * self._tick
        return moments, bits & np.uint64(0xFFFFF) < self._there

    def which(self, clients: Numbers, time: float) -> Flags:
        return self.outlook(clients, time).there

    def outlook(self, clients: Numbers, time: float) -> Outlook:
        now = cell = int(time // self._length)
        there = np.zeros(len(clients), dtype=bool)
        until = np.full(len(clients), (now + 1) * self._length)  # the next draw, or the end of the cell
        rest = np.arange(len(clients))  # those whose last draw is not found yet
        while len(rest) > FEW or (cell == now and len(rest)):
            base, number = self._cell(clients[rest].astype(np.uint64), cell)
            last = np.full(len(rest), -inf)
            for n in range(int(number.max())):
                some = np.flatnonzero(number > n)
                moments, outcomes = self._draw(base[some], n, cell)
                before = moments <= time
                if cell == now:
                    places = rest[some]
                    until[places] = np.where(before, until[places], np.minimum(until[places], moments))
                # of two draws at one moment, the one that says `there` is the last, as in a sorted list
                later = before & (moments >= last[some])
                wins = later & (outcomes | (moments > last[some]))
                last[some[later]] = moments[later]
                there[rest[some[wins]]] = outcomes[wins]
            rest = rest[last == -inf]
            cell -= 1
        for place in rest.tolist():
            there[place] = self._last_draw(int(clients[place]), cell, time)
        return Outlook(there, until)

    def openings(self, after: float) -> Openings:
        cell = int(after // self._length)
        base, number = self._cell(np.arange(self.population, dtype=np.uint64), cell)
        times, clients = [np.empty(0)], [np.empty(0, dtype=np.int64)]
        for n in range(int(number.max(initial=0))):
            some = np.flatnonzero(number > n)
            moments, outcomes = self._draw(base[some], n, cell)
            opens = outcomes & (moments > after)
            times.append(moments[opens])
            clients.append(some[opens])
        found, who = np.concatenate(times), np.concatenate(clients)
        order = np.lexsort((who, found))
        return Openings((cell + 1) * self._length, found[order], who[order])


def _poisson_bounds(mean: float) -> list[int]:
    """Return the cumulated probabilities of a Poisson law, as 24-bit numbers: a random one is below the first
    for 0 events, below the second for 1, and so on."""
    bounds: list[int] = []
    chance, total = exp(-mean), 0.0
    while len(bounds) < 2 or int(total * 2**24) > bounds[-2]:
        total += chance
        bounds.append(min(int(total * 2**24), 2**24))
        chance *= mean / len(bounds)
    return bounds
