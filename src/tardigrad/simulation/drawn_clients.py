"""The clients that are drawn for each trip, and who of them is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tardigrad.core.draws import BLOCK, Draws
from tardigrad.simulation.presence import Numbers, Presence

FIRST = 4
"""So many attempts are looked at for all trips, the others only for trips that these find nobody for."""
LEAST = 64
"""For fewer trips at a time it does not pay to look ahead."""


class DrawnClients:
    """Clients drawn at random for each trip, attempt after attempt.

    Who of them is there is looked up with NumPy for many trips to come, and holds until one of the clients
    may come or go. How many trips ahead is only a matter of speed.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._block = -1  # the block of trips that `_clients` is of
        self._clients: Numbers = np.empty((0, 0), dtype=np.int64)  # by attempt and trip
        self._ahead = 0  # for how many trips to look ahead; below LEAST: not in this block
        self._begin, self._missed = 0, 0
        self._known: list[tuple[float, int, int, float]] = []
        """For each trip from `_begin` on: until when the rest holds, the attempt that comes next, the client
        that the one before has found (-1 if none has), and until when that client stays."""

    def first_there(self, trip: int, time: float, choices: Sequence[Draws]) -> tuple[int, int, float]:
        """Return the attempt that comes next, and the client that the one before it has found with the time
        until which it stays for certain; -1 if that is not known. Times and trips must not go back."""
        block, place = divmod(trip, BLOCK)
        if block != self._block:
            self._block, self._known = block, []
            drawn = np.stack([draws.array(block) for draws in choices]) * self._presence.population
            self._clients = drawn.astype(np.int64)
            self._ahead = max(self._ahead, 8 * LEAST)
        if not self._known or place >= self._begin + len(self._known):
            self._look_ahead(place, time)
        elif self._missed * 8 > len(self._known):
            self._ahead //= 4
            self._look_ahead(place, time)
        if self._known:
            holds, attempt, client, stays = self._known[place - self._begin]
            if time < holds:
                return attempt, client, stays
            self._missed += 1
        return 0, -1, 0.0

    def client(self, attempt: int, trip: int) -> int:
        """Return the client that an attempt draws, of a trip that `first_there` was asked for."""
        return int(self._clients[attempt, trip % BLOCK])

    def _look_ahead(self, place: int, time: float) -> None:
        drawn = self._clients[:, place : place + self._ahead]
        self._begin, self._missed, self._known = place, 0, []
        if self._ahead < LEAST:
            return
        self._ahead = min(2 * self._ahead, BLOCK)
        trips = drawn.shape[1]
        holds, stays = np.full(trips, np.inf), np.zeros(trips)
        attempts, clients = np.zeros(trips, dtype=np.int64), np.zeros(trips, dtype=np.int64)
        rest = np.arange(trips)
        for begin, end in ((0, FIRST), (FIRST, len(drawn))):
            some = drawn[begin:end, rest]
            outlook = self._presence.outlook(some.ravel(), time)
            if outlook is None:
                self._ahead = 0
                return
            there, until = (numbers.reshape(some.shape) for numbers in outlook)
            found = there.any(axis=0)
            chosen = (np.where(found, there.argmax(axis=0), len(some) - 1), np.arange(len(rest)))
            attempts[rest] = begin + chosen[0] + 1
            clients[rest] = np.where(found, some[chosen], -1)
            stays[rest] = until[chosen]
            holds[rest] = np.minimum(holds[rest], np.minimum.accumulate(until, axis=0)[chosen])
            rest = rest[~found]
        self._known = list(zip(holds.tolist(), attempts.tolist(), clients.tolist(), stays.tolist()))
