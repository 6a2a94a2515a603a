"""Signed requests: which are admitted, and which are refused."""

import asyncio
import contextlib

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import FakeClock, app_of, enrolled_key, failed, fetched, serving

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import LIST, Enrolled, make_key, public_text
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.access.signed_requests import WINDOW_MS, RequestVerifier, Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=20),
    service={"requests_per_second": 1000, "poll_seconds": 0.2},
)  # fmt: skip


def gate_and_signer(tmp_path, clock=None):
    clock = clock or FakeClock()
    key = enrolled_key(tmp_path, "ann")
    gate = RequestVerifier(Enrolled(tmp_path / LIST), clock)
    signer = Signer("ann", key, clock)
    signer.session = gate.session
    return gate, signer


def refused(gate, signed, method="FetchTask"):
    with pytest.raises(Refused) as caught:
        gate.admit(signed, method)
    return caught.value.why


def test_a_request_is_admitted_once_and_for_its_call_only(tmp_path):
    gate, signer = gate_and_signer(tmp_path)
    signed = signer.sign("FetchTask", b"what")
    assert gate.admit(signed, "FetchTask") == ("ann", b"what")
    assert refused(gate, signed) is Cause.REPLAYED
    assert refused(gate, signer.sign("GiveUp")) is Cause.MISDIRECTED


def test_strangers_and_forged_requests_are_refused(tmp_path):
    gate, signer = gate_and_signer(tmp_path)
    stranger = Signer("eve", Ed25519PrivateKey.generate())
    stranger.session = gate.session
    assert refused(gate, stranger.sign("FetchTask")) is Cause.NOT_ENROLLED
    forger = Signer("ann", Ed25519PrivateKey.generate())
    forger.session = gate.session
    assert refused(gate, forger.sign("FetchTask")) is Cause.SIGNATURE
    signed = signer.sign("FetchTask", b"mine")
    claim = v1.Claim()
    claim.ParseFromString(signed.claim)
    claim.content = b"changed"
    changed = v1.Signed(claim=claim.SerializeToString(), signature=signed.signature)
    assert refused(gate, changed) is Cause.SIGNATURE
    assert refused(gate, v1.Signed(claim=b"\xff\xff", signature=b"")) is Cause.UNSIGNED


def test_old_requests_are_refused_also_by_a_restarted_server(tmp_path):
    clock = FakeClock()
    gate, signer = gate_and_signer(tmp_path, clock)
    signed, join = signer.sign("FetchTask"), signer.sign("Join")
    clock.advance(1)
    restarted = RequestVerifier(Enrolled(tmp_path / LIST), clock)
    assert refused(restarted, signed) is Cause.SESSION
    assert refused(restarted, join, "Join") is Cause.TIME
    clock.advance(WINDOW_MS / 1000)
    assert refused(gate, signed) is Cause.TIME


def test_nonces_are_forgotten_no_sooner_than_their_requests_expire(tmp_path):
    clock = FakeClock()
    gate, signer = gate_and_signer(tmp_path, clock)
    signer.ahead_ms = WINDOW_MS  # dated as far ahead as is allowed
    signed = signer.sign("FetchTask")
    gate.admit(signed, "FetchTask")
    clock.advance(2 * WINDOW_MS / 1000)
    assert refused(gate, signed) is Cause.REPLAYED
    clock.advance(1)
    assert refused(gate, signed) is Cause.TIME
    gate.admit(Signer("ann", signer._key, clock).sign("Join"), "Join")
    assert len(gate._nonces) == 1


def test_changes_of_the_list_of_clients_are_noticed(tmp_path):
    clock = FakeClock()
    gate, _ = gate_and_signer(tmp_path, clock)
    bob = Signer("bob", make_key(tmp_path / "bob.key"), clock)
    assert refused(gate, bob.sign("Join"), "Join") is Cause.NOT_ENROLLED
    add_clients(tmp_path / LIST, {"bob": public_text(bob._key)})
    assert gate.admit(bob.sign("Join"), "Join") == ("bob", b"")
    (tmp_path / LIST).write_text("")
    clock.advance(2)
    assert refused(gate, bob.sign("Join"), "Join") is Cause.NOT_ENROLLED


@pytest.mark.parametrize("damage", [b"ann\n", b"\xff\xfe\n", None])
def test_a_running_server_keeps_its_list_if_the_file_is_damaged(damage, tmp_path):
    clock = FakeClock()
    gate, signer = gate_and_signer(tmp_path, clock)
    (tmp_path / LIST).unlink()
    if damage is None:
        (tmp_path / LIST).mkdir()
    else:
        (tmp_path / LIST).write_bytes(damage)
    clock.advance(2)
    assert gate.admit(signer.sign("FetchTask"), "FetchTask") == ("ann", b"")
    with pytest.raises(ConfigError, match=LIST):
        Enrolled(tmp_path / LIST)


def test_foreign_tampered_and_replayed_requests_are_refused_over_the_network(tmp_path):
    """Another client's ticket, a changed body, a replayed delivery, an unknown client."""
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            stranger = Signer("eve", Ed25519PrivateKey.generate())
            async with contextlib.AsyncExitStack() as stack:
                joining = stack.enter_async_context(Connection(running.address, stranger, None))
                assert await failed(joining) is grpc.StatusCode.PERMISSION_DENIED
                ann = await stack.enter_async_context(running.connect("ann"))
                bob = await stack.enter_async_context(running.connect("bob"))
                task = await fetched(ann)
                finished = ClientTrainer("ann", app_of(simulation, 0)).train(task, {})
                assert await failed(bob.deliver(finished)) is grpc.StatusCode.PERMISSION_DENIED
                assert (
                    await failed(bob.give_up(finished.trip, finished.epoch))
                    is grpc.StatusCode.PERMISSION_DENIED
                )

                sent = []
                honest = ann._stub.Deliver
                ann._stub.Deliver = lambda parts, timeout: _tampering(honest, parts, timeout, sent)
                assert await failed(ann.deliver(finished)) is grpc.StatusCode.INVALID_ARGUMENT
                ann._stub.Deliver = honest
                assert (await ann.deliver(finished)).accepted
                again = honest(_parts(sent))
                assert await failed(again) is grpc.StatusCode.UNAUTHENTICATED
                assert (await ann.deliver(finished)).accepted  # signed anew: the recorded answer
                assert running.coordinator.run_state.trips == 1
            return running.refusals

    counts = asyncio.run(scene())
    assert counts[Cause.NOT_ENROLLED] == 1
    assert counts[Cause.NOT_YOURS] == 2
    assert counts[Cause.BODY] == 1
    assert counts[Cause.REPLAYED] == 1


async def _parts(sent):
    for part in sent:
        yield part


async def _tampering(deliver, parts, timeout, sent):
    async def changed():
        async for part in parts:
            sent.append(part)
            if part.chunk:
                part = v1.UploadPart(chunk=bytes([part.chunk[0] ^ 1]) + part.chunk[1:])
            yield part

    return await deliver(changed(), timeout=timeout)
