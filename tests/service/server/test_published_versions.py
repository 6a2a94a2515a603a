"""Versions that clients may download."""

import asyncio

import pytest
import torch

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.published_versions import PublishedVersions
from tardigrad.service.server.task_broadcast import Broadcast

BROADCAST = Broadcast({"model": torch.zeros(1)})


def test_download_waits_until_the_version_is_published():
    async def scene():
        versions = PublishedVersions()
        versions.announce(3)
        download = asyncio.ensure_future(versions.get(3))
        await asyncio.sleep(0)
        assert not download.done()
        versions.publish(3, BROADCAST)
        versions.announce(3)  # it stays published
        assert await download is await versions.get(3) is BROADCAST

    asyncio.run(scene())


def test_removed_version_is_refused():
    async def scene():
        versions = PublishedVersions()
        versions.announce(3)
        versions.remove(3)
        versions.publish(3, BROADCAST)  # the model thread was slower
        with pytest.raises(Refused, match="version 3 is gone") as caught:
            await versions.get(3)
        return caught.value.why

    assert asyncio.run(scene()) is Cause.UNSOLICITED
