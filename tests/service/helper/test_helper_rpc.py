"""A helper over the network."""

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import prepared, running_helper
from secure_world import World
from wire_server import connected

from tardigrad.service.access.enrolment import public_key
from tardigrad.service.access.identity import own_identity

CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}


@pytest.fixture
def world(tmp_path):
    prepared(tmp_path, CLIENTS)
    return World(identities=[own_identity(tmp_path / "helper-keys")])


def test_a_helper_that_is_stopped_between_batches_goes_on(world, tmp_path):
    async def scene():
        last = None
        for version in range(3):
            async with running_helper(tmp_path, world.server) as helper, connected(helper, world) as server:
                if last is None:
                    await server.greet()
                    begun = await server.begin()
                    public_key(helper.identity, "").verify(begun.policy_signature, world.policy.digest)
                else:
                    greeting = await server.greet("run-1", bytes.fromhex(last.hash), last.version)
                    assert greeting.receipt.receipt == last.to_bytes()
                trips, total, signed = await server.round(version, CLIENTS)
                assert total.tolist() == world.code_sum(version + 1, trips).tolist()
                assert signed.is_signed_by(public_key(helper.identity, ""))
                assert last is None or signed.receipt.follows(last)
                last = signed.receipt

    asyncio.run(scene())
