"""The versions that clients may download."""

from __future__ import annotations

import asyncio

from tardigrad.core.download_sizes import MOST_DIFFERENCES
from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.wire import layout_of, size_of
from tardigrad.service.server.task_broadcast import Broadcast


class PublishedVersions:
    """Versions that exist, or that will exist as soon as the model thread has made them."""

    def __init__(self) -> None:
        self._versions: dict[int, asyncio.Future[Broadcast]] = {}
        self._differences: dict[int, Vectors] = {}  # what leads to a version from the one before

    def announce(self, version: int) -> None:
        """Let `get` wait for this version."""
        if version not in self._versions:
            self._versions[version] = asyncio.get_running_loop().create_future()

    def publish(self, version: int, broadcast: Broadcast) -> None:
        """Give an announced version to all callers of `get`, unless it was removed meanwhile."""
        if broadcast.difference:
            self._differences[version] = broadcast.difference
            most = broadcast.size // max(1, size_of(layout_of(broadcast.difference)))
            # more of them would be larger than the whole, or too many
            self._differences.pop(version - min(most, MOST_DIFFERENCES), None)
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

    def since(self, has: int, version: int, whole: Broadcast) -> Broadcast | None:
        """Return the differences that lead from one version to another as they are downloaded, or None if the
        whole version must be sent: a difference is not here any more, or they are larger together."""
        steps = range(has + 1, version + 1)
        if has > version or any(step not in self._differences for step in steps):
            return None
        parts = {f"{step}/{name}": v for step in steps for name, v in self._differences[step].items()}
        found = Broadcast(parts)
        return found if found.size < whole.size else None
