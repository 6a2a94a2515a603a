"""A helper over the network."""

import asyncio
import contextlib

import grpc
import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import prepared, running_helper
from secure_world import World
from wire_server import connected

from tardigrad.service.access.enrolment import LIST, public_key, public_text
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1

CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}
STRANGER = Ed25519PrivateKey.generate()


@pytest.fixture
def world(tmp_path):
    prepared(tmp_path, CLIENTS)
    return World(identities=[own_identity(tmp_path / "helper-keys")])


@contextlib.asynccontextmanager
async def begun(world, folder, **options):
    """A helper and a server that have begun the run."""
    async with running_helper(folder, world.server, **options) as helper, connected(helper, world) as server:
        await server.greet()
        await server.begin()
        yield helper, server


async def status_of(call):
    """The status, the sentence and the kind with which a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    trailing = dict(caught.value.trailing_metadata())
    return caught.value.code(), caught.value.details(), trailing.get("tardigrad-why")


def test_a_helper_that_is_stopped_between_batches_goes_on(world, tmp_path):
    async def scene():
        last = None
        for version in range(3):
            async with running_helper(tmp_path, world.server) as helper, connected(helper, world) as server:
                if last is None:
                    await server.greet()
                    found = await server.begin()
                    public_key(helper.identity, "").verify(found.policy_signature, world.policy.digest)
                else:
                    greeting = await server.greet("run-1", bytes.fromhex(last.hash), last.version)
                    assert greeting.receipt.receipt == last.to_bytes()
                trips, total, signed = await server.round(version, CLIENTS)
                assert total.tolist() == world.code_sum(version + 1, trips).tolist()
                assert signed.is_signed_by(public_key(helper.identity, ""))
                assert last is None or signed.receipt.follows(last)
                last = signed.receipt

    asyncio.run(scene())


def test_greeting_tells_what_the_helper_has(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (helper, server):
            offer = world.offer([server], "ann")
            await server.admit([server.delivery(offer, CLIENTS["ann"])])
            found = await server.greet(receipt=bytes.fromhex(helper.state.receipt.receipt.hash))
            assert (found.run, found.open_batch) == ("run-1", 1)
            assert list(found.places) == [helper_v1.Place(trip=offer.trip, batch=1, digest=offer.digest)]
            assert found.key.key_id == helper.state.key.key_id

    asyncio.run(scene())


@pytest.mark.parametrize("method", ["Greet", "Begin", "Admit", "Close", "Publish", "Abandon"])
def test_strangers_get_nothing_but_a_refusal(method, world, tmp_path):
    """Neither another key nor an enrolled client, under any name, nor the server's words for another call."""

    async def scene():
        async with begun(world, tmp_path) as (helper, server):
            before = helper.state.places(), helper.state.receipt
            claims = [
                Signer(name, key)
                for name in ("server", "ann", "nobody")
                for key in (STRANGER, CLIENTS["ann"])
            ]
            for signer in claims:
                signer.session = server.signer.session
            requests = [signer.sign(method) for signer in claims]
            requests += [v1.Signed(), v1.Signed(claim=b"x" * 999), server.signer.sign("Join")]
            for request in requests:
                code, sentence, _ = await status_of(raw(server.stub, method, request))
                assert code in (
                    grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED,
                    grpc.StatusCode.INVALID_ARGUMENT,
                ), sentence  # fmt: skip
            assert (helper.state.places(), helper.state.receipt) == before

    asyncio.run(scene())


async def raw(stub, method, signed):
    """A call with this signed request, as it is."""
    parts = {"Begin": helper_v1.BeginPart, "Publish": helper_v1.PublishPart}
    if method in parts:
        return await getattr(stub, method)(iter([parts[method](header=signed)]))
    call = getattr(stub, method)(signed)
    return [part async for part in call] if method == "Close" else await call


def test_replayed_request_is_refused(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            request = server.signed("Admit", helper_v1.AdmitRequest())
            await server.stub.Admit(request)
            assert (await status_of(server.stub.Admit(request)))[2] == "replayed"

    asyncio.run(scene())


def test_request_to_another_process_of_the_helper_is_refused(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            old = server.signer.session
        async with running_helper(tmp_path, world.server) as helper, connected(helper, world) as server:
            server.signer.session = old
            assert (await status_of(server.admit([])))[2] == "another session"

    asyncio.run(scene())


def test_clients_are_those_of_the_helpers_own_list(world, tmp_path):
    """Whatever the server says, and whoever signs: a client must be enrolled with the helper."""
    fay = Ed25519PrivateKey.generate()

    async def scene():
        async with begun(world, tmp_path) as (helper, server):
            offers = [world.offer([server], name) for name in ("fay", "ann", "bob", "eve")]
            ann = CLIENTS["ann"]
            other = Signer("eve", CLIENTS["eve"]).sign("GiveUp").SerializeToString()
            places = await server.admit([
                server.delivery(offers[0], fay), server.delivery(offers[1], STRANGER),
                server.delivery(offers[2], ann), other, b"no message", b"",
            ])  # fmt: skip
            assert [(place.batch, place.refusal) for place in places] == [
                (0, "the client is not on the helper's own list"),
                (0, "not signed with the key that the client is enrolled with at the helper"),
                (0, "not signed with the key that the client is enrolled with at the helper"),
                *[(0, "this is not the signed header of an upload")] * 3,
            ]
            add_clients(helper.keys / LIST, {"fay": public_text(fay)})  # while the helper runs
            offer = world.offer([server], "fay")
            assert (await server.admit([server.delivery(offer, fay)]))[0].batch == 1

    asyncio.run(scene())


@pytest.mark.parametrize("change", ["trip", "version", "run", "digest"])
def test_header_that_the_server_changed_is_not_signed_by_the_client(world, tmp_path, change):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            delivery = v1.Signed.FromString(server.delivery(world.offer([server], "ann"), CLIENTS["ann"]))
            claim = v1.Claim.FromString(delivery.claim)
            header = v1.UploadHeader.FromString(claim.content)
            setattr(header, change, {"trip": 9, "version": 1, "run": "run-2", "digest": bytes(32)}[change])
            claim.content = header.SerializeToString()
            delivery.claim = claim.SerializeToString()
            places = await server.admit([delivery.SerializeToString()])
            assert (
                places[0].refusal == "not signed with the key that the client is enrolled with at the helper"
            )

    asyncio.run(scene())


def test_refusals_tell_the_server_what_to_do(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            found = await status_of(server.close(1, bytes(32)))
            assert found == (
                grpc.StatusCode.FAILED_PRECONDITION, "batch 1 is not full: 0 of 3 uploads were admitted",
                "not now",
            )  # fmt: skip
            assert (await status_of(server.greet("run-2")))[2] == "another history"
            policy = world.policy.model_copy(update={"least_clients": 3}).to_bytes()
            assert (await status_of(server.begin(policy)))[2] == "policy"
            zeros = np.zeros(12, np.uint32)
            assert (await status_of(server.publish(1, zeros, world.version(0))))[2] == "not now"
            assert (await status_of(server.abandon(1)))[2] == "not now"

    asyncio.run(scene())


@pytest.mark.parametrize("size", [0, 1, 95, 97])
def test_version_of_another_length_is_refused(world, tmp_path, size):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            content = helper_v1.PublishRequest(
                version=1, digest=bytes(32), vectors=[v1.Vector(name="model", length=12)]
            )
            parts = [
                helper_v1.PublishPart(header=server.signed("Publish", content)),
                helper_v1.PublishPart(chunk=bytes(size)),
            ]
            code, _, why = await status_of(server.stub.Publish(iter(parts)))
            assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "wrong length")

    asyncio.run(scene())


@pytest.mark.parametrize(
    "vectors",
    [
        [], [v1.Vector(name="model", length=2**62)], [v1.Vector(name="model", length=13)],
        [v1.Vector(name="model", length=12, dtype="float1")], [v1.Vector(name="other", length=12)],
        [v1.Vector(name="model", length=12)] * 2, [v1.Vector(name=str(n), length=1) for n in range(99)],
    ],
)  # fmt: skip
def test_no_memory_is_taken_for_a_version_0_that_cannot_be(world, tmp_path, vectors):
    async def scene():
        async with running_helper(tmp_path, world.server) as helper, connected(helper, world) as server:
            await server.greet()
            content = helper_v1.BeginRequest(policy=world.policy.to_bytes(), vectors=vectors)
            part = helper_v1.BeginPart(header=server.signed("Begin", content))
            assert (await status_of(server.stub.Begin(iter([part]))))[2] == "wrong vectors"
            assert helper.state.policy is None

    asyncio.run(scene())


def test_helper_that_cannot_write_says_so_and_ends(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (helper, server):
            helper.state._database._connection.execute("PRAGMA query_only=ON")
            delivery = server.delivery(world.offer([server], "ann"), CLIENTS["ann"])
            code, sentence, _ = await status_of(server.admit([delivery]))
            assert (code, sentence) == (
                grpc.StatusCode.UNAVAILABLE,
                "the helper has failed; its log says why",
            )
            assert (await status_of(server.admit([delivery])))[0] == grpc.StatusCode.UNAVAILABLE
            assert "cannot be written" in str(helper.servicer.failed.exception())

    asyncio.run(scene())


def test_release_is_the_same_for_a_server_that_asks_again(world, tmp_path):
    async def scene():
        async with begun(world, tmp_path) as (_, server):
            offers = [world.offer([server], name) for name in CLIENTS]
            await server.admit([server.delivery(one, CLIENTS[one.client]) for one in offers])
            digest = blake3(world.masked_sum(1, [one.trip for one in offers]).tobytes()).digest()
            first, again = await server.close(1, digest), await server.close(1, digest)
            assert np.array_equal(first, again)
            assert (await status_of(server.close(1, bytes(32))))[2] == "another history"

    asyncio.run(scene())
