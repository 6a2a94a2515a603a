"""Whatever arrives at the calls of operators: no crash, no change, and a refusal with a cause."""

import asyncio
import random

import grpc
from google.protobuf.message import DecodeError
from service_harness import PATIENCE, serving
from test_fuzz import CONFIG, MESSAGES, cut, flipped

from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.server import admin_rpc

METHODS = {"Enter": False, "Steer": False, "Export": True, "Follow": True}
"""By name, whether the answer is a stream."""


def content(chance):
    """The content of a request, which can be anything but an act that is possible."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    client = chance.choice(["", "x" * 300, "../..", "\0", "nobody", "\u202e"])
    act = chance.choice(["", "PAUSE", "stop ", "end", "deliver", "x" * 5000, "eject", "admit", "check_in"])
    limits = {
        chance.choice(["concurrency", "ticket_seconds", "", "seed", "x" * 999]): chance.choice(
            [float("nan"), float("inf"), -1.0, 0.0, 1e300]
        )
    }
    request = admin_v1.SteerRequest(
        run=chance.choice(["", "other", "x" * 999]),
        act=act,
        client=client,
        reason="r" * chance.choice([0, 501]),
    )
    if kind > 2 or act in ("admit", "eject"):
        request.act, request.client = "limits", ""
        request.limits.update(limits)
    data = request.SerializeToString()
    return (flipped, cut)[kind % 2](data, chance) if kind == 2 and data else data


def claims(chance, signer, stranger, client):
    """A request that must be refused, as bytes, and the call that it is sent to."""
    method = chance.choice(list(METHODS))
    kind = chance.randrange(6)
    if kind == 0:
        return method, chance.randbytes(chance.randrange(300))
    if kind == 1:
        return method, flipped(signer.sign(method, content(chance)).SerializeToString(), chance)
    if kind == 2:
        return method, chance.choice([stranger, client]).sign(method, content(chance)).SerializeToString()
    if kind == 3:
        other = chance.choice(["Join", "FetchTask", *(set(METHODS) - {method})])
        return method, signer.sign(other, content(chance)).SerializeToString()
    if kind == 4:
        return method, v1.Signed(
            claim=chance.randbytes(50), signature=chance.randbytes(64)
        ).SerializeToString()
    return "Steer", signer.sign("Steer", content(chance)).SerializeToString()


def changed_something(data, signer):
    """Whether a flipped bit left the signed claim as it was, so that the request is good."""
    try:
        signed = v1.Signed.FromString(data)
    except DecodeError:
        return False
    claim = v1.Claim()
    try:
        claim.ParseFromString(signed.claim)
        signer._key.public_key().verify(signed.signature, signed.claim)
    except Exception:
        return False
    return claim.method in ("Enter", "Export", "Follow")


def test_no_message_to_the_administration_changes_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(admin_rpc, "REQUESTS_PER_SECOND", 1e9)
    chance = random.Random(11)

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:
            signer = root._signer
            stranger = Signer("root", running.signer("eve")._key)
            client = running.signer("ann")
            stranger.session = client.session = signer.session
            before, causes = running.coordinator.run_state.state(), set()
            async with grpc.aio.insecure_channel(running.address) as channel:
                for _ in range(MESSAGES // 2):
                    method, data = claims(chance, signer, stranger, client)
                    if changed_something(data, signer) and method != "Steer":
                        continue
                    path = f"/tardigrad.v1.Administration/{method}"
                    try:
                        if METHODS[method]:
                            await channel.unary_stream(path)(data).read()
                        else:
                            await channel.unary_unary(path)(data)
                    except grpc.aio.AioRpcError as error:
                        causes.add(dict(error.trailing_metadata()).get("tardigrad-why"))
                    else:
                        raise AssertionError(f"{method} took {data!r}")
            assert running.coordinator.run_state.state() == before
            assert not (tmp_path / "audit.jsonl").exists()
            assert (await root.steer("pause")).audit == 1
            return causes

    causes = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    assert None not in causes
    assert {Cause.UNSIGNED, Cause.SIGNATURE, Cause.NOT_ENROLLED, Cause.MISDIRECTED, Cause.ACT} <= causes
