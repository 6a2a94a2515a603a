"""A server that publishes versions to a real helper."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import prepared, running_helper
from secure_world import NUMBERS, World
from wire_server import connected

from tardigrad.privacy.releases import digest_of
from tardigrad.service.access.identity import own_identity
from tardigrad.service.server.helper_connection import HelperConnection, HelperRefused

CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}


@asynccontextmanager
async def released(folder):
    """A world whose first batch is released: the connection, the released sum, and the step from it."""
    prepared(folder, CLIENTS)
    world = World(identities=[own_identity(folder / "helper-keys")])
    async with running_helper(folder, world.server) as helper, connected(helper, world) as server:
        await server.greet()
        await server.begin()
        offers = [world.offer([server], name) for name in CLIENTS]
        await server.admit([server.delivery(one, CLIENTS[one.client]) for one in offers])
        hidden = world.masked_sum(1, [offer.trip for offer in offers])
        total = hidden - await server.close(1, blake3(hidden.tobytes()).digest())
        connection = HelperConnection(helper.address.address, world.server, None)
        await connection.greet("run-1", b"", 0)
        yield helper, connection, total, world.stepped(0, total, 3)
        await connection.close_channel()


def test_version_with_other_last_bits_is_sent_and_signed(tmp_path):
    async def scene():
        async with released(tmp_path) as (helper, connection, total, new):
            for _ in range(2):  # one of two neighbours at least is not what the helper computes
                new["model"] = torch.nextafter(new["model"], torch.full((NUMBERS,), torch.inf))
            original, sent = connection._publish, []
            connection._publish = lambda *given: sent.append("model" in given[3]) or original(*given)
            signed = await connection.publish(1, digest_of(new), total, new)
            assert signed.receipt.digest == digest_of(new)
            assert torch.equal(helper.state.version()["model"], new["model"])
            assert helper.servicer.refusals.counts == {"other bits": 1}
            assert await connection.publish(1, digest_of(new), total, new) == signed
            assert sent == [False, True, True], "the next versions are sent at once"

    asyncio.run(scene())


def test_version_that_is_not_the_step_is_refused_although_it_is_sent(tmp_path):
    async def scene():
        async with released(tmp_path) as (helper, connection, total, new):
            new["model"] = new["model"] + 1
            with pytest.raises(HelperRefused, match="is not the step of the released sum"):
                await connection.publish(1, digest_of(new), total, new)
            assert helper.state.receipt.receipt.version == 0

    asyncio.run(scene())
