"""The versions that clients may download."""

from __future__ import annotations

import asyncio

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.task_broadcast import Broadcast


class PublishedVersions:
    """Versions that exist, or that will exist as soon as the model thread has made them."""

    def __init__(self) -> None:
        self._versions: dict[int, asyncio.Future[Broadcast]] = {}

    def announce(self, version: int) -> None:
        """Let `get` wait for this version."""
        if version not in self._versions:
            self._versions[version] = asyncio.get_running_loop().create_future()

    def publish(self, version: int, broadcast: Broadcast) -> None:
        """Give an announced version to all callers of `get`, unless it was removed meanwhile."""
        future = self._versions.get(version)
        if future is not None and not future.done():
            future.set_result(broadcast)

    def remove(self, version: int) -> None:
        """Forget a version that no client will start from any more."""
        self._versions.pop(version, None)

    async def get(self, version: int) -> Broadcast:
        """Return a version as it is downloaded, as soon as it exists; raise `Refused` if it was removed."""
        future = self._versions.get(version)
        if future is None:
            raise Refused(Cause.UNSOLICITED, f"version {version} is gone: the trip has just ended")
        return await asyncio.shield(future)
