"""Limits: how often one client may ask, and how much may be received at once."""

from __future__ import annotations

import asyncio
from collections import deque

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.clock import SYSTEM, Clock

FORGET_AFTER = 10_000
"""Clients whose rate is remembered before those who are quiet are forgotten."""


class Rates:
    """Requests per client and second: a bucket for each that fills again with time."""

    def __init__(self, per_second: float, clock: Clock = SYSTEM) -> None:
        self._per_second, self._clock = per_second, clock
        self._most = max(1.0, 2 * per_second)  # a burst of two seconds' worth
        self._left: dict[str, tuple[float, float]] = {}  # by client: requests left, and when that was

    def take(self, client: str) -> None:
        """One request, or `Refused`."""
        now = self._clock.monotonic()
        left, then = self._left.get(client, (self._most, now))
        left = min(self._most, left + (now - then) * self._per_second)
        if left < 1:
            wait = (1 - left) / self._per_second
            raise Refused(
                Cause.RATE, f"more than {self._per_second:g} requests a second; wait {wait:.2f} s", wait
            )
        self._left[client] = (left - 1, now)
        if len(self._left) > FORGET_AFTER:
            full = now - self._most / self._per_second  # who was quiet for so long has a full bucket
            self._left = {client: entry for client, entry in self._left.items() if entry[1] > full}


class UploadMemory:
    """Memory for uploads: those who do not fit wait, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, seconds: float) -> None:
        """Wait for room, but not longer than so."""
        if not self._waiting and self.used + size <= self._most:
            self.used += size
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, place)
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(asyncio.shield(place), seconds)
        except BaseException as error:
            if place.done():  # granted just now: nobody will use it
                self.give_back(size)
            else:
                self._waiting.remove(entry)
                self._serve()
            if isinstance(error, TimeoutError):
                raise Refused(
                    Cause.FULL,
                    f"{self._most} bytes of uploads are being received; come again",
                    retry_after=1.0,
                ) from None
            raise

    def give_back(self, size: int) -> None:
        """So much is free again."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self._most:
            size, place = self._waiting.popleft()
            self.used += size
            place.set_result(None)
