"""A client's own request rate, below the server's limit, so that the server need not refuse requests.

>>> pace = RequestPace(clock=lambda: 0.0)
>>> pace.limit(2.0)
>>> [round(pace.reserve(), 2) for _ in range(3)]
[0.0, 0.56, 1.11]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PART = 0.9
"""The part of the server's rate that a client uses: timing on the network is not exact."""


class RequestPace:
    """Delays requests to a rate below the server's limit; a burst of one second's requests is not delayed.

    The server allows bursts of twice that size, so other programs with the same key, such as
    `tardigrad status`, can send some requests as well.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = 0.0
        self._burst = 0.0
        self._left = 0.0
        self._updated = clock()

    def limit(self, per_second: float) -> None:
        """Set the server's limit, which the answer to the first request tells; 0: no request is delayed."""
        rate = PART * per_second
        if rate != self._rate:
            self._rate, self._burst = rate, max(1.0, per_second)
            self._left, self._updated = self._burst - 1, self._clock()

    def reserve(self) -> float:
        """Count one request, and return after how many seconds it may be sent."""
        if not self._rate:
            return 0.0
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._updated) * self._rate) - 1
        self._updated = now
        return max(0.0, -self._left / self._rate)

    async def wait(self) -> None:
        """Wait until the next request may be sent."""
        seconds = self.reserve()
        if seconds > 0:
            await asyncio.sleep(seconds)
