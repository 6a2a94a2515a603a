"""Presence with exponential times there and away, as a function of (seed, client, time) without any state."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import exp, frexp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.draws import BLOCK, key
from tardigrad.simulation.availability import OnOff
from tardigrad.simulation.presence import FEW, Flags, Numbers, Openings, Presence

Words = NDArray[np.uint64]
_MASK = 2**64 - 1
_STEP, _CELL = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_PART = 2**20
"""Of the 64 bits of a draw, 20 say when it happens in its cell and 20 what comes out; in the first of a
cell, the 24 others say how many there are."""


OFTEN = 60
"""A block of clients is worked out for a cell after so many questions, which take about as long."""


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


class _BlockInCell(NamedTuple):
    """The clients of a block during a cell. Questions about random clients take as long as the memory that
    they read, so that it is kept small."""

    begins: bytes
    """Whether each is there when the cell begins: 0 or 1."""
    firsts: array[float]
    """The time of its first draw in the cell, or the end of the cell."""
    then: bytes
    """What the first draw has come to, if the second is later: 0 or 1."""
    seconds: array[float]
    """The time of its second draw in the cell, or the end of the cell."""
    ends: Flags
    """Whether each is there when the cell ends."""


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
        # a cache of the cell of the last question, because times mostly go forward
        blocks = population // BLOCK + 1
        self._asked = [0] * blocks
        self._blocks: list[_BlockInCell | None] = [None] * blocks
        self._before: list[Flags | None] = [None] * blocks  # who is there at the end of the cell before
        self._now, self._begin, self._end = 0, 0.0, self._length

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
        if not self._begin <= time < self._end:
            self._enter(int(time // self._length))
        known = self._blocks[client // BLOCK] or self._known(client)
        if known is not None:
            begins, firsts, then, seconds, _ = known
            place = client % BLOCK
            if time < firsts[place]:
                return begins[place] == 1
            if time < seconds[place]:
                return then[place] == 1
        return self._last_draw(client, self._now, time)

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
        if not self._begin <= start < self._end:
            self._enter(int(start // self._length))
        known = self._blocks[client // BLOCK] or self._known(client)
        if known is not None:
            place = client % BLOCK
            first, second = known.firsts[place], known.seconds[place]
            if end < first or (end < second and (start >= first or known.then[place])):
                return None
        for later in range(self._now, int(end // self._length) + 1):
            for moment, outcome in self._draws(client, later):
                if not outcome and moment > start:
                    return moment if moment < end else None
        return None

    def _enter(self, cell: int) -> None:
        """Prepare for questions about times in this cell."""
        follows = cell == self._now + 1
        self._before = [known.ends if follows and known is not None else None for known in self._blocks]
        self._blocks, self._asked = [None] * len(self._blocks), [0] * len(self._asked)
        self._now, self._begin, self._end = cell, cell * self._length, (cell + 1) * self._length

    def _known(self, client: int) -> _BlockInCell | None:
        """Work out the block of a client in this cell, and return it; None while few ask for the block."""
        block = client // BLOCK
        self._asked[block] += 1
        if self._asked[block] >= OFTEN:
            self._blocks[block] = self._block(block)
        return self._blocks[block]

    def _block(self, block: int) -> _BlockInCell:
        clients, cell = np.arange(block * BLOCK, (block + 1) * BLOCK), self._now
        before = self._before[block]
        begins = self.which(clients, self._begin) if before is None else before
        base, number = self._cell(clients.astype(np.uint64), cell)
        firsts, seconds = np.full(BLOCK, self._end), np.full(BLOCK, self._end)
        then, ends, last = begins.copy(), begins.copy(), np.full(BLOCK, -inf)
        for n in range(int(number.max())):
            some = np.flatnonzero(number > n)
            moments, outcomes = self._draw(base[some], n, cell)
            seconds[some] = np.minimum(seconds[some], np.maximum(firsts[some], moments))
            earlier = moments < firsts[some]
            then[some[earlier]] = outcomes[earlier]
            firsts[some] = np.minimum(firsts[some], moments)
            wins = (moments > last[some]) | (outcomes & (moments == last[some]))
            ends[some[wins]] = outcomes[wins]
            last[some] = np.maximum(last[some], moments)
        times = (array("d", numbers.tobytes()) for numbers in (firsts, seconds))
        return _BlockInCell(begins.tobytes(), next(times), then.tobytes(), next(times), ends)

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
        flags = np.zeros(len(clients), dtype=bool)
        rest = np.arange(len(clients))  # those whose last draw is not found yet
        cell = int(time // self._length)
        while len(rest) > FEW:
            base, number = self._cell(clients[rest].astype(np.uint64), cell)
            last = np.full(len(rest), -inf)
            for n in range(int(number.max())):
                some = np.flatnonzero(number > n)
                moments, outcomes = self._draw(base[some], n, cell)
                # of two draws at one moment, the one that says `there` is the last, as in a sorted list
                later = (moments <= time) & (moments >= last[some])
                wins = later & (outcomes | (moments > last[some]))
                last[some[later]] = moments[later]
                flags[rest[some[wins]]] = outcomes[wins]
            rest = rest[last == -inf]
            cell -= 1
        for place in rest.tolist():
            flags[place] = self._last_draw(int(clients[place]), cell, time)
        return flags

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
