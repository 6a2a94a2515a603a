"""Clients as `tardigrad join` runs them, with a real server and a real helper of a secure run."""

import asyncio

import grpc
import pytest
from helper_harness import prepared
from secure_federation import SecureFederation
from service_harness import PATIENCE, app_of
from test_secure_runs import NOISE
from test_secure_served import CONFIG

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.participant import Participant
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import KNOWS_ENCODINGS

SERVICE = {"requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0}
SMALL = CONFIG.model_copy(
    update={
        "model": td.MLP(hidden=()), "local": td.Local(steps=2, lr=0.1), "stop": td.Stop(trips=12),
        "service": CONFIG.service.model_copy(update=SERVICE),
    }
)  # fmt: skip


@pytest.fixture
def federation(tmp_path):
    return SecureFederation(tmp_path, SMALL, build(SMALL), range(6))


def participant(federation, running, client, seen=lambda line: None, **demands):
    """A client that has pinned the helpers of the run."""
    name = str(client)
    helpers = tuple(helper.identity for helper in federation.identities)
    trainer = ClientTrainer(name, app_of(federation.simulation, client))
    return Participant(
        running.address, running.signer(name), None, trainer, federation.folder / "clients" / name, PATIENCE,
        seen, Guardrails(helpers=helpers, **demands),
    )  # fmt: skip


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


def test_clients_take_part_in_a_secure_private_run_until_its_end(tmp_path):
    config = SMALL.model_copy(update={"privacy": NOISE})
    federation = SecureFederation(tmp_path, config, build(config), range(6))

    async def scene():
        async with federation.helpers(), federation.serving() as running:
            everybody = [participant(federation, running, client).take_part() for client in range(6)]
            return await asyncio.gather(*everybody)

    assert done(scene()) == ["trips"] * 6
    counted = [e for e in federation.record.events if e["event"] == "upload" and e["accepted"]]
    assert len(counted) >= 9
    assert {(e["staleness"] >= 0, e["weight"] <= 1) for e in counted} == {(True, True)}


def test_client_outside_of_whose_guardrails_the_run_is_says_so(federation):
    async def scene():
        async with federation.helpers(), federation.serving() as running:
            await participant(federation, running, 0, least_clients=3).take_part()

    with pytest.raises(ConfigError, match="releases sums of 2 clients, and this client demands at least 3"):
        done(scene())
    assert not any(event["event"] == "upload" for event in federation.record.events)


def test_client_that_was_stopped_with_a_finished_upload_delivers_it_later(federation):
    async def scene():
        async with federation.helpers(), federation.serving() as running:
            client = participant(federation, running, 0)
            sent = asyncio.Event()

            async def never(connection, finished):
                sent.set()
                await asyncio.Event().wait()

            client._send = never
            work = asyncio.ensure_future(client.take_part())
            await sent.wait()
            (kept,) = ClientMemory(federation.folder / "clients" / "0" / running.coordinator.run).pending()
            assert len(kept.seeds) == 1
            client._at_work = None  # killed: it cannot give its ticket back
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            everybody = [participant(federation, running, number).take_part() for number in range(6)]
            assert await asyncio.gather(*everybody) == ["trips"] * 6
            return kept

    kept = done(scene())
    (arrived,) = (e for e in federation.record.events if e["event"] == "upload" and e["trip"] == kept.trip)
    assert arrived["accepted"]


def test_client_that_the_helper_does_not_know_is_told_so(federation):
    seen = []
    prepared(federation.folder / "helper-0", {n: key for n, key in federation.signers.items() if n != "0"})

    async def scene():
        async with federation.helpers(), federation.serving() as running:
            stranger = asyncio.ensure_future(participant(federation, running, 0, seen.append).take_part())
            while not seen:
                await asyncio.sleep(0.01)
            stranger.cancel()
            await asyncio.gather(stranger, return_exceptions=True)

    done(scene())
    assert seen[0].endswith("did not count: the client is not on the helper's own list")


def test_client_that_is_older_than_secure_runs_is_told_to_upgrade(federation):
    async def scene():
        async with federation.helpers(), federation.serving() as running:
            async with federation.client(running, 1):  # the run has begun
                pass
            request = v1.JoinRequest(revision=KNOWS_ENCODINGS).SerializeToString()
            async with grpc.aio.insecure_channel(running.address) as channel:
                await v1_grpc.FederationStub(channel).Join(running.signer("0").sign("Join", request))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        done(scene())
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "this run is secure, which this client does not know; upgrade it"
