"""Limits: how often a client may ask, how long it may be silent, how much may be received at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TypeVar

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.clock import SYSTEM, Clock

FORGET_AFTER = 10_000
"""How many clients' rates are kept before those of clients without recent requests are deleted."""
SLOWEST = 16 * 1024
"""Bytes a second below which an upload is cut off, because it occupies memory that others wait for."""

T = TypeVar("T")


async def unless_silent(operation: Awaitable[T], seconds: float) -> T:
    """Return what a read from a client or a write to it returns; raise `Refused` if it takes longer."""
    limit = max(0.0, seconds)
    try:
        async with asyncio.timeout(limit):  # unlike wait_for, it needs no task of its own
            return await operation
    except TimeoutError:
        raise Refused(
            Cause.SILENT, f"nothing moved for {limit:g} s, or it was slower than {SLOWEST} bytes a second"
        ) from None


class Rates:
    """Limits requests per client and second: a token bucket for each client."""

    def __init__(self, per_second: float, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._limit(per_second)
        self._left: dict[str, tuple[float, float]] = {}  # by client: requests left, and when that was

    def _limit(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, 2 * per_second)  # a burst of two seconds' worth

    def take(self, client: str, per_second: float | None = None) -> None:
        """Count a request, or raise `Refused` if there were too many. `per_second`: the limit from now on."""
        if per_second is not None:
            self._limit(per_second)
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
            full = now - self._most / self._per_second  # buckets that were last used before are full
            self._left = {client: entry for client, entry in self._left.items() if entry[1] > full}


class UploadMemory:
    """Limits the memory of uploads. Uploads that do not fit wait, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        """Bytes that are in use."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, seconds: float) -> None:
        """Reserve `size` bytes; raise `Refused` if they are not free after this time."""
        if not self._waiting and self.used + size <= self._most:
            self.used += size
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, place)
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(asyncio.shield(place), seconds)
        except BaseException as error:
            if place.done():  # reserved just now, and nobody will use it
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
        """Release `size` bytes."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self._most:
            size, place = self._waiting.popleft()
            self.used += size
            place.set_result(None)
