"""A helper that is killed at any moment releases nothing twice differently, and draws no noise twice."""

import asyncio
import contextlib
import random
import signal

import grpc
import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import helper_process, prepared
from secure_world import World
from wire_server import connected, signed_receipt

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.secure.policy import HelperNoise
from tardigrad.service.access.identity import own_identity

CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}
BATCHES = 4
NOISE = HelperNoise(
    mechanism=td.Tree(), deviation=50_000.0, steps=BATCHES, allowed=BATCHES, noise_multiplier=1.0,
    epsilon=1e6, delta=1e-5,
)  # fmt: skip


class KilledHelper:
    """A helper that is killed while it answers, and started again."""

    def __init__(self, folder, world, commands, chance):
        self._folder, self._world, self._commands, self._chance = folder, world, commands, chance
        self._last = None  # the newest receipt
        self.kills = 0

    async def __aenter__(self):
        self._stack = contextlib.AsyncExitStack()
        await self._start()
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    async def _start(self):
        await self._stack.aclose()
        running = self._stack.enter_context(
            helper_process(self._folder, self._world.server, commands=self._commands)
        )
        self._process = running.process
        self.server = await self._stack.enter_async_context(connected(running, self._world))
        await self._greet()

    async def _greet(self):
        if self._last is None:
            await self.server.greet()
        else:
            await self.server.greet("run-1", bytes.fromhex(self._last.hash), self._last.version)

    async def call(self, make, same=lambda one, other: one == other):
        """The answer to a call that is made again until it is answered, and once more if the helper was
        killed after it had answered. `make`: makes the call from a server."""
        answers = []
        for killing in (*(self._chance.random() < 0.5 for _ in range(2)), False):
            task = asyncio.ensure_future(make(self.server))
            if killing:
                await asyncio.sleep(self._chance.uniform(0.0, 0.03))
                self._process.send_signal(signal.SIGKILL)
                self.kills += 1
            with contextlib.suppress(grpc.aio.AioRpcError):
                answers.append(await task)
            if killing:
                await self._start()
        assert all(same(answers[0], other) for other in answers[1:])
        return answers[-1]

    def received(self, signed):
        """The server has stored a receipt."""
        assert self._last is None or signed.receipt.follows(self._last)
        self._last = signed.receipt


def noise_of(world, trips, batch, total):
    return total.view(np.int32) - world.code_sum(batch, trips)


@pytest.mark.parametrize("seed", [1])
def test_helper_that_is_killed_at_any_moment_releases_each_sum_once(seed, tmp_path, commands):
    prepared(tmp_path, CLIENTS)
    identity = own_identity(tmp_path / "helper-keys")
    world = World(identities=[identity], noise=NOISE, norm=100.0, limits=Limits(BATCHES, 1), least_clients=3)

    async def scene():
        noises = []
        async with KilledHelper(tmp_path, world, commands, random.Random(seed)) as helper:
            begun = await helper.call(
                lambda server: server.begin(), lambda one, other: one.receipt == other.receipt
            )
            helper.received(signed_receipt(begun.receipt))
            for version in range(BATCHES):
                offers = [world.offer([helper.server], name, version) for name in CLIENTS]
                trips = [one.trip for one in offers]
                deliveries = [helper.server.delivery(one, CLIENTS[one.client]) for one in offers]
                places = await helper.call(lambda server, these=deliveries: server.admit(these))
                assert [one.batch for one in places] == [version + 1] * 3
                hidden = world.masked_sum(version + 1, trips)
                digest = blake3(hidden.tobytes()).digest()
                total = hidden - await helper.call(
                    lambda server, batch=version + 1, digest=digest: server.close(batch, digest),
                    np.array_equal,
                )
                noises.append(noise_of(world, trips, version + 1, total))
                new = world.stepped(version, total, 3)
                signed = await helper.call(
                    lambda server, at=version + 1, total=total, new=new: server.publish(at, total, new)
                )
                helper.received(signed)
            assert helper.kills >= 8
        assert len({tuple(noise) for noise in noises}) == BATCHES
        assert all(np.abs(noise).max() > 1000 for noise in noises)

    asyncio.run(scene())
