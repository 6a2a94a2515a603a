"""Warnings of certificates that expire soon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from tardigrad.service.protocol.refusals import log
from tardigrad.service.server.clock import SYSTEM, Clock

DAY = 86_400.0
EXPIRY_DAYS = 30
"""A certificate that expires sooner is warned of once a day."""


async def warn_of_expiry(certificates: Mapping[str, float], clock: Clock = SYSTEM) -> None:
    """Log once a day which certificates expire soon or have expired, until cancelled. `certificates`: when
    each expires, in seconds since 1970."""
    while True:
        for name, when in certificates.items():
            days = (when - clock.wall()) / DAY
            if days < EXPIRY_DAYS:
                log.warning(
                    "%s %s on %s: renew it and restart the server", name,
                    "expires" if days > 0 else "has expired", datetime.fromtimestamp(when, UTC).date(),
                    extra={"event": "certificate"},
                )  # fmt: skip
        await asyncio.sleep(DAY)
