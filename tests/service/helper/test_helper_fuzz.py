"""Whatever arrives at a helper's port, from strangers and from its own server: no crash, and no change that
matters. `make soak` sends 100,000."""

import asyncio
import contextlib
import logging
import os
import random

import grpc
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import prepared, running_helper
from secure_world import NUMBERS, World
from wire_server import connected

from tardigrad.privacy.releases import digest_of
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1

MESSAGES = 100_000 if "TARDIGRAD_SOAK" in os.environ else 600
AT_ONCE = 8
CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}
UNARY = ("Greet", "Admit", "Close", "Abandon")
STREAMED = ("Begin", "Publish")
NUMBERS_TO_TRY = (0, 1, 2, 3, 2**31, 2**63 - 1, 2**63, 2**64 - 1)


def flipped(data, chance):
    """Some bits of it are others."""
    other = bytearray(data)
    for _ in range(chance.choice((1, 1, 8)) if data else 0):
        other[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(other)


def cut(data, chance):
    """It ends before its end, or something follows."""
    return data[: chance.randrange(len(data) + 1)] + chance.randbytes(chance.choice((0, 1, 50)))


class Fuzzer:
    """Sends what no honest server would send. Two uploads of batch 1 were admitted, and must stay there."""

    def __init__(self, running, channel, server, world, chance):
        self.running, self.server, self.world, self.chance = running, server, world, chance
        self.stranger = Signer("server", Ed25519PrivateKey.generate())
        self.stranger.session = server.signer.session
        raw = {"request_serializer": None, "response_deserializer": None}
        path = "/tardigrad.v1.Helper/"
        self.calls = {name: channel.unary_unary(path + name, **raw) for name in UNARY if name != "Close"}
        self.calls["Close"] = channel.unary_stream(path + "Close", **raw)
        self.calls |= {name: channel.stream_unary(path + name, **raw) for name in STREAMED}
        self.codes = world.random.integers(0, 9, NUMBERS).astype("int32")

    def content(self, method):
        """The content of a request that is wrong, and could be signed by the server."""
        chance, number = self.chance, self.chance.choice(NUMBERS_TO_TRY)
        if chance.random() < 0.2:
            return chance.randbytes(chance.choice((0, 1, 40, 900)))
        if method == "Greet":
            receipt = chance.choice((b"x", chance.randbytes(32)))
            message = helper_v1.GreetRequest(run=chance.choice(("run-1", "", "x" * 999)), receipt=receipt)
            message.version = number
        elif method == "Admit":
            message = helper_v1.AdmitRequest(deliveries=[self.delivery() for _ in range(chance.randrange(4))])
        elif method == "Close":
            message = helper_v1.CloseRequest(batch=number, masked_digest=chance.randbytes(32))
        elif method == "Abandon":
            message = helper_v1.AbandonRequest(batch=number, reason="x" * chance.randrange(999))
        else:
            vectors = [
                v1.Vector(
                    name=chance.choice(("model", "", "x")),
                    length=number,
                    dtype=chance.choice(("", "int8", "x")),
                )
            ]
            if chance.random() < 0.5:
                vectors = [v1.Vector(name="model", length=NUMBERS)]
            if method == "Begin":
                policy = chance.choice((flipped, cut))(self.world.policy.to_bytes(), chance)
                message = helper_v1.BeginRequest(policy=policy, vectors=vectors)
            else:
                message = helper_v1.PublishRequest(
                    version=number, digest=chance.randbytes(32), vectors=vectors
                )
        content = message.SerializeToString()
        return chance.choice((flipped, cut))(content, chance) if chance.random() < 0.2 else content

    def delivery(self):
        """A delivery that must not be admitted."""
        chance = self.chance
        trip = 10**6 + chance.randrange(50)
        offer = self.world.offer([self.server], "eve", trip=trip, codes=self.codes)
        spoil = chance.randrange(4)
        if spoil == 0:
            return chance.choice((flipped, cut))(self.server.delivery(offer, CLIENTS["ann"]), chance)
        if spoil == 1:
            return self.server.delivery(offer, CLIENTS["eve"], version=chance.choice((1, 2**63, 2**64 - 1)))
        key_id, sealed = offer.envelopes[0]
        wrong = chance.choice(
            ((key_id, flipped(sealed, chance)), (key_id, b""), (b"", sealed), (b"x" * 99, b""))
        )
        envelopes = chance.choice(((), (wrong,), (wrong, wrong)))
        return self.server.delivery(offer._replace(envelopes=envelopes), CLIENTS["eve"])

    def message(self, method):
        """A request: of a stranger, of the server and spoilt, or of the server with wrong content."""
        chance = self.chance
        kind = chance.randrange(4)
        if kind == 0:
            return chance.randbytes(chance.choice((0, 1, 10, 300, 5000)))
        signer = self.stranger if kind == 1 else self.server.signer
        signed = signer.sign(method, self.content(method))
        if kind == 2:
            signed.signature = flipped(signed.signature, chance)
        return signed.SerializeToString()

    async def one(self):
        """Send one thing, and return the status that it was answered with."""
        chance = self.chance
        if chance.random() < 0.05:
            return await self.bytes_on_the_port()
        method = chance.choice(UNARY + STREAMED)
        message = self.message(method)
        if method not in STREAMED:
            call = self.calls[method](message, timeout=60)
            return await self.status(call, method != "Close")
        kind = helper_v1.BeginPart if method == "Begin" else helper_v1.PublishPart
        with contextlib.suppress(Exception):
            message = kind(header=v1.Signed.FromString(message)).SerializeToString()
        size = chance.choice((0, 4, 48, 96, 97, 5000))
        parts = [message, kind(chunk=bytes(size)).SerializeToString()]
        if chance.random() < 0.3:
            chance.shuffle(parts)
        return await self.status(self.calls[method](iter(parts), timeout=60), True)

    @staticmethod
    async def status(call, single):
        try:
            await (call if single else call.read())
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()

    async def bytes_on_the_port(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        with contextlib.suppress(OSError, TimeoutError):  # it may hang up on us
            writer.write(self.chance.randbytes(self.chance.choice((0, 1, 1000, 100_000))))
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(reader.read(100), 1)
        writer.close()


def test_malformed_messages_to_a_helper_change_nothing(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "tardigrad")
    prepared(tmp_path, CLIENTS)
    world = World(identities=[own_identity(tmp_path / "helper-keys")])
    chance = random.Random(7)

    async def scene():
        async with running_helper(tmp_path, world.server) as helper, connected(helper, world) as server:
            await server.greet()
            await server.begin()
            offers = [world.offer([server], name) for name in ("ann", "bob")]
            await server.admit([server.delivery(one, CLIENTS[one.client]) for one in offers])
            before = helper.state.places(), helper.state.receipt, helper.state.key.key_id
            statuses = set()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{helper.port}") as channel:
                fuzzer = Fuzzer(helper, channel, server, world, chance)

                async def some(count):
                    for _ in range(count):
                        statuses.add(await fuzzer.one())

                await asyncio.gather(*(some(MESSAGES // AT_ONCE) for _ in range(AT_ONCE)))
            assert grpc.StatusCode.UNKNOWN not in statuses  # how gRPC says that a handler has crashed
            assert grpc.StatusCode.UNAVAILABLE not in statuses  # the helper has not failed
            assert not helper.servicer.failed.done()
            assert (helper.state.places(), helper.state.receipt, helper.state.key.key_id) == before
            await finish(world, server, offers)

    asyncio.run(scene())


async def finish(world, server, offers):
    """The run goes on as if nothing had been."""
    last = world.offer([server], "eve", trip=10**7)
    places = await server.admit([server.delivery(last, CLIENTS["eve"])])
    assert (places[0].batch, places[0].position) == (1, 2)
    trips = [one.trip for one in (*offers, last)]
    hidden = world.masked_sum(1, trips)
    total = hidden - await server.close(1, blake3(hidden.tobytes()).digest())
    assert total.view("int32").tolist() == world.code_sum(1, trips).tolist()
    new = world.stepped(0, total, 3)
    assert (await server.publish(1, total, new)).receipt.digest == digest_of(new)
