"""Operators steer a secure run: the helpers and the server agree about every upload, whenever a client is
ejected, and what is exported was signed."""

import asyncio
import contextlib
import shutil

import grpc
import pytest
from safetensors.torch import load_file
from secure_federation import SecureFederation
from service_harness import PATIENCE
from test_secure_outages import SMALL, quiet, until

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.received_export import receive_export
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.server import helper_link, operator_acts
from tardigrad.service.server.helper_connection import HelperAway
from tardigrad.service.server.helper_group import HelperGroup
from tardigrad.service.server.steering import STOPPED
from tardigrad.service.store.audit_verification import verified
from tardigrad.service.store.contract import JournalEntry

CONFIG = SMALL.model_copy(update={"stop": td.Stop(steps=3)})


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def why_refused(call):
    """The cause of the server's refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return dict(caught.value.trailing_metadata())["tardigrad-why"]


@pytest.fixture(scope="module")
def simulation():
    return build(CONFIG)


@pytest.fixture
def federation(tmp_path, simulation):
    return SecureFederation(tmp_path, CONFIG, simulation, range(6))


@contextlib.asynccontextmanager
async def three(federation, running):
    """Three clients."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(federation.client(running, client)) for client in range(3)]


async def step(running, puppets):
    """Let these clients make trips until the model has moved, and the helpers have signed it."""
    version = running.coordinator.run_state.book.version
    while running.coordinator.run_state.book.version == version:
        for puppet in puppets:
            puppet.patient = True
            await puppet.deliver(await puppet.fetch())
    await quiet(running)


def gated_admission(monkeypatch):
    """Hold the server's questions about uploads until the event is set; count them."""
    ask, gate, asked = HelperGroup.admit, asyncio.Event(), []

    async def held(self, deliveries):
        asked.append(len(deliveries))
        await gate.wait()
        return await ask(self, deliveries)

    monkeypatch.setattr(HelperGroup, "admit", held)
    return gate, asked


def test_upload_that_waits_for_the_helpers_does_not_count_after_an_eject(federation, monkeypatch):
    async def scene():
        gate, asked = gated_admission(monkeypatch)
        async with federation.helpers() as helpers, federation.serving() as running:
            state = running.coordinator.run_state
            async with (
                three(federation, running) as (ann, bob, eve),
                federation.client(running, 3) as dan,
                running.operator() as root,
            ):
                trips = [await puppet.fetch() for puppet in (ann, bob)]
                ann.patient = True
                counted = asyncio.ensure_future(ann.deliver(trips[0]))
                await until(lambda: asked == [1])  # the helpers are being asked about ann's
                waiting = asyncio.ensure_future(bob.deliver(trips[1]))
                await until(lambda: trips[1] in state.secure.offers)
                file = state.secure.offers[trips[1]].file
                ejecting = asyncio.ensure_future(root.steer("eject", client="1"))
                await until(lambda: len(running.coordinator.link._asking._waiters or ()) == 1)
                gate.set()
                assert (await ejecting).ended == 1
                assert await why_refused(waiting) == Cause.EJECTED
                assert (await counted).accepted
                assert state.book.accepted == 1
                assert state.secure.offers == {}
                assert file in running.coordinator.recovery._used, "its space is released by a snapshot"
                await step(running, (eve, dan))
                assert state.secure.version == helpers[0].state.receipt.receipt.version == 1
            return federation.record.events

    events = done(scene())
    assert {event["client"] for event in events if event["event"] == "upload"} == {"0", "2", "3"}
    assert [event["client"] for event in events if event["event"] == "give_up"] == ["1"]


def test_eject_is_done_although_the_operator_has_hung_up(federation, monkeypatch):
    """Otherwise the helpers could be asked about an upload of the client while its eject is journaled."""

    async def scene():
        gate, asked = gated_admission(monkeypatch)
        async with (
            federation.helpers(),
            federation.serving() as running,
            three(federation, running) as (ann, bob, _),
        ):
            coordinator = running.coordinator
            trips = [await puppet.fetch() for puppet in (ann, bob)]
            ann.patient = True
            counted = asyncio.ensure_future(ann.deliver(trips[0]))
            await until(lambda: asked == [1])
            entry = JournalEntry("eject", 0.0, client="1", admin="root", wall=1e9)
            acting = asyncio.ensure_future(coordinator.acts.act(entry))
            await until(lambda: len(coordinator.link._asking._waiters or ()) == 1)
            acting.cancel()
            gate.set()
            await until(lambda: "1" in coordinator.run_state.steering.ejected)
            assert (await counted).accepted
            await until(lambda: coordinator.recovery.audit.synced.number == 1)

    done(scene())


def test_client_cannot_be_ejected_while_the_fate_of_its_upload_is_not_known(federation, monkeypatch):
    """The helpers may have admitted it; then it is in their batch and must count."""
    monkeypatch.setattr(helper_link, "UNDECIDED_SECONDS", 0.2)

    async def scene():
        async with federation.helpers() as helpers, federation.serving() as running:
            state = running.coordinator.run_state
            async with three(federation, running) as (ann, bob, eve), running.operator() as root:
                trip = await ann.fetch()
                admit, answered = HelperGroup.admit, []

                async def lost(self, deliveries):
                    answered.append(await admit(self, deliveries))  # the answer is lost on its way
                    raise HelperAway("the helper has left")

                with monkeypatch.context() as patch:
                    patch.setattr(HelperGroup, "admit", lost)
                    assert await why_refused(ann.deliver(trip)) == Cause.HELPER_AWAY
                    assert await why_refused(root.steer("eject", client="0")) == Cause.HELPER_AWAY
                    assert answered
                    assert trip in state.book.in_flight, "nothing was changed"
                while not state.book.accepted:
                    await asyncio.sleep(0.01)
                assert (await root.steer("eject", client="0")).changed
                assert state.book.accepted == 1, "what counted stays"
                await step(running, (bob, eve))
                assert state.secure.version == helpers[0].state.receipt.receipt.version == 1

    done(scene())


def test_recovered_offer_of_a_client_is_decided_before_it_is_ejected(federation, monkeypatch):
    monkeypatch.setattr(helper_link, "UNDECIDED_SECONDS", 0.2)

    async def before():
        gate, asked = gated_admission(monkeypatch)
        async with (
            federation.helpers(),
            federation.serving() as running,
            federation.client(running, 0) as ann,
        ):
            ann.patient = True
            waiting = asyncio.ensure_future(ann.deliver(await ann.fetch()))
            await until(lambda: asked == [1])
            shutil.copytree(federation.store, federation.folder / "killed")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            gate.set()
        monkeypatch.undo()

    done(before())

    async def after():
        monkeypatch.setattr(helper_link, "UNDECIDED_SECONDS", 0.2)
        folder = federation.folder / "killed"
        async with federation.serving(None, folder) as running, running.operator() as root:
            state = running.coordinator.run_state
            assert len(state.secure.offers) == 1
            assert await why_refused(root.steer("eject", client="0")) == Cause.HELPER_AWAY
            async with federation.helpers() as helpers:
                await until(lambda: not state.secure.offers)
                assert (await root.steer("eject", client="0")).ended == 0
                async with three_others(federation, running) as puppets:
                    await step(running, puppets)
                assert state.secure.version == helpers[0].state.receipt.receipt.version == 1

    federation.record.events.clear()
    done(after())


@contextlib.asynccontextmanager
async def three_others(federation, running):
    """Three clients that have not been there."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(federation.client(running, c)) for c in (3, 4, 5)]


def test_paused_secure_run_goes_on_with_uploads_and_stops_when_its_steps_are_signed(federation):
    async def scene():
        async with federation.helpers() as helpers, federation.serving() as running:
            state = running.coordinator.run_state
            async with three(federation, running) as puppets, running.operator() as root:
                trips = [await puppet.fetch() for puppet in puppets]
                await root.steer("pause")
                for puppet, trip in zip(puppets, trips):
                    puppet.patient = True
                    assert (await puppet.deliver(trip)).accepted
                assert (await root.steer("stop")).changed
                assert await asyncio.shield(running.coordinator.ended) == STOPPED
                assert state.secure.version == helpers[0].state.receipt.receipt.version == 1

    done(scene())
    assert federation.record.events[-1]["reason"] == STOPPED
    assert [line["act"] for line in verified(federation.store / "audit.jsonl")] == ["pause", "stop"]


def test_exported_version_of_a_secure_run_has_receipts(federation, monkeypatch, tmp_path):
    monkeypatch.setattr(operator_acts, "EXPORT_SECONDS", 0.2)

    async def scene():
        async with federation.helpers(), federation.serving() as running:
            state, model_state = running.coordinator.run_state, running.coordinator.model_state
            async with three(federation, running) as puppets, running.operator() as root:
                await step(running, puppets)
                publish, gate = HelperGroup.publish, asyncio.Event()

                async def held(self, *given):
                    await gate.wait()
                    return await publish(self, *given)

                monkeypatch.setattr(HelperGroup, "publish", held)
                trips = [await puppet.fetch() for puppet in puppets]
                for puppet, trip in zip(puppets, trips):
                    await puppet.deliver(trip)
                await until(lambda: model_state.aggregator.version == 2)
                assert state.secure.version == 1
                assert await why_refused(anext(root.export())) == Cause.HELPER_AWAY
                gate.set()
                await quiet(running)
                header = await receive_export(root.export(), tmp_path / "out")
                assert header.version == state.secure.version == 2
                return running.run.assembly.flat.state_dict(model_state.aggregator.evaluated_model)

    expected = done(scene())
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all((found[name] == value).all() for name, value in expected.items())
    assert [line["act"] for line in verified(federation.store / "audit.jsonl")] == ["export"]
