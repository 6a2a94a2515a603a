"""Waiting between two tries to reach a server."""

from __future__ import annotations

import asyncio
import random
import time

from tardigrad.errors import RunError
from tardigrad.service.protocol.refusals import log

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
"""Seconds between two tries, before random jitter."""


class Backoff:
    """Waits longer after each failure, with random jitter so that clients do not return all at once.

    A reason is logged once; repetitions are logged at the level debug.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.succeeded()

    def succeeded(self) -> None:
        """Begin with a short wait at the next failure."""
        self._wait = FIRST_WAIT
        self._since: float | None = None
        self._logged = ""

    def restart_patience(self) -> None:
        """Count the seconds of `patience` from the next failure, because somebody has answered."""
        self._since = None

    async def failed(self, why: str, at_least: float = 0.0) -> None:
        """Wait before the next try, or raise a RunError if none has succeeded for `patience` seconds."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._patience:
            raise RunError(f"gave up after {self._patience:g} s without success: {why}")
        wait = max(at_least, self._wait * random.uniform(0.5, 1.5))
        if why != self._logged:
            log.info("%s (trying again for up to %g s)", why, self._patience)
            self._logged = why
        else:
            log.debug("%s (trying again in %.1f s)", why, wait)
        await asyncio.sleep(wait)
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
