"""Helpers that are away, servers and helpers that are stopped or put back: nothing is lost or repeated."""

import asyncio
import contextlib
import shutil
from collections import Counter

import grpc
import pytest
import torch
from secure_federation import SecureFederation
from service_harness import PATIENCE, FakeClock, Memory, comparable, failed, settled, trace_of
from test_secure_served import CONFIG

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.service.monitor.metrics import MetricsCollector
from tardigrad.service.monitor.progress_lines import progress_line
from tardigrad.service.monitor.progress_record import progress_of
from tardigrad.service.monitor.status import status_of
from tardigrad.service.monitor.status_table import rows
from tardigrad.service.protocol.refusals import OVER
from tardigrad.service.server.helper_connection import HelperAway, HelperConnection

SMALL = CONFIG.model_copy(update={"model": td.MLP(hidden=()), "stop": td.Stop(trips=9)})


@pytest.fixture(scope="module")
def trace():
    return trace_of(SMALL)


@pytest.fixture
def federation(tmp_path, trace):
    return SecureFederation(tmp_path, SMALL, trace[0], range(6))


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def until(condition):
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.001)


async def quiet(running):
    """Wait until the helpers have nothing to do."""
    run_state = running.coordinator.run_state
    await until(lambda: not run_state.unreceipted and not run_state.secure.offers)
    await settled(running)


def deliveries(steps, count):
    """How many steps of a trace there are until so many uploads were delivered."""
    found = [index for index, step in enumerate(steps) if step[0] == "deliver"]
    return found[count - 1] + 1


async def finished(federation, running, steps):
    """Do the rest of a trace; return the model."""
    await federation.replay(running, steps)
    await asyncio.shield(running.coordinator.ended)
    return running.coordinator.model_state.aggregator.evaluated_model


def test_while_a_helper_is_away_clients_come_again_and_tickets_do_not_expire(federation, trace):
    simulation, events, steps = trace
    cut, hour = deliveries(steps, 2) - 1, SMALL.service.ticket_seconds
    clock = federation.clock = FakeClock()

    async def scene():
        async with contextlib.AsyncExitStack() as stack:
            async with federation.helper():
                running = await stack.enter_async_context(federation.serving())
                await federation.replay(running, steps[:cut])
                await quiet(running)
            coordinator, (_, client, trip) = running.coordinator, steps[cut]
            async with federation.client(running, client) as puppet:
                for _ in range(2):
                    assert await failed(puppet.deliver(trip)) is grpc.StatusCode.UNAVAILABLE
                clock.advance(2 * hour)
                status = status_of(coordinator, running.server.servicer)
                assert status.helper_away == 2 * hour
                why = status.explained()[0]
                assert (why.severity, why.since) == ("error", 2 * hour)
                assert why.sentence.startswith("A helper of this secure run cannot be reached")
                assert dict(rows(status, None))["helper"].startswith("away since 7,200 s")
                line = progress_line(progress_of(coordinator, running.server.servicer))
                assert line.startswith("a helper is away since 7,200 s")
                collector = MetricsCollector(coordinator, running.server.servicer, None)
                metrics = await asyncio.to_thread(lambda: {one.name: one for one in collector.collect()})
                assert metrics["tardigrad_helper_away_seconds"].samples[0].value == 2 * hour
                in_flight = dict(coordinator.run_state.book.in_flight)
                await coordinator._sweep()
                assert coordinator.run_state.book.in_flight == in_flight
                async with federation.helper():
                    await until(lambda: coordinator.link.away is None)
                    await coordinator._sweep()  # the clients have not had the time to come
                    assert coordinator.run_state.given_up == 0
                    assert status_of(coordinator, running.server.servicer).helper_away is None
                    return await finished(federation, running, steps[cut:])

    assert torch.equal(done(scene()), simulation.model)
    assert comparable(federation.record.events) == comparable(events)


def test_run_that_is_over_says_which_steps_wait_for_a_helper_that_is_away(federation, trace, monkeypatch):
    """The server can be stopped then, and the next one makes the steps when the helper is back."""
    simulation, events, steps = trace

    async def lost(*_):
        raise HelperAway("the helper has left")

    async def scene():
        last = deliveries(steps, SMALL.stop.trips)
        async with contextlib.AsyncExitStack() as stack:
            patch = stack.enter_context(monkeypatch.context())
            await stack.enter_async_context(federation.helper())
            running = await stack.enter_async_context(federation.serving())
            await federation.replay(running, steps[: last - 1])
            await quiet(running)
            coordinator, servicer = running.coordinator, running.server.servicer
            patch.setattr(HelperConnection, "release", lost)
            await federation.replay(running, steps[last - 1 : last])
            await until(lambda: coordinator.run_state.over and coordinator.link.away)
            said = "over (trips), but for 1 step that the helpers must release and sign"
            assert dict(rows(status_of(coordinator, servicer), None))["run"] == said
            assert progress_line(progress_of(coordinator, servicer)).startswith(f"the run is {said}, ")
            async with federation.client(running, 0) as puppet:  # has a finished upload, and needs a key
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await puppet.connection.offered_keys()
            assert dict(caught.value.trailing_metadata())[OVER] == "trips"
        assert not coordinator.ended.done()
        async with federation.helper(), federation.serving() as running:
            return await finished(federation, running, steps[last:])

    assert torch.equal(done(scene()), simulation.model)
    assert comparable(federation.record.events) == comparable(events)


@pytest.mark.parametrize("who", ["server", "helper", "both"])
def test_stopped_and_started_again_at_every_upload_the_run_has_the_same_bits(federation, trace, who):
    simulation, events, steps = trace

    async def scene():
        begin = 0
        async with contextlib.AsyncExitStack() as stack:
            if who == "server":
                await stack.enter_async_context(federation.helper())
            elif who == "helper":
                async with federation.helper():
                    running = await stack.enter_async_context(federation.serving())
                    await until(lambda: not running.coordinator.run_state.unreceipted)
            for count in range(1, SMALL.stop.trips + 1):
                end = deliveries(steps, count)
                async with contextlib.AsyncExitStack() as parts:
                    if who != "server":
                        await parts.enter_async_context(federation.helper())
                    if who != "helper":
                        running = await parts.enter_async_context(federation.serving())
                    await federation.replay(running, steps[begin:end])
                    if count == SMALL.stop.trips:
                        model = await finished(federation, running, steps[end:])
                begin = end
            return model

    assert torch.equal(done(scene()), simulation.model)
    assert comparable(federation.record.events) == comparable(events)


def test_calls_that_reach_only_one_of_two_helpers_are_repeated_for_both(tmp_path, monkeypatch):
    config = SMALL.model_copy(update={"secure": td.Secure(least_clients=2, helpers=2)})
    simulation, events, steps = trace_of(config)
    federation = SecureFederation(tmp_path, config, simulation, range(6), helpers=2)
    lost = Counter()

    def unreliable(name, original):
        async def call(connection, *given):
            if connection.address.endswith(f":{federation.ports[1]}"):
                what = f"{name} {given[1]}" if name == "admit" else name  # checks are counted apart
                lost[what] += 1
                if lost[what] % 2:
                    raise HelperAway("the network is down")
            return await original(connection, *given)

        return call

    for name in ("begin", "admit", "release", "publish"):
        monkeypatch.setattr(HelperConnection, name, unreliable(name, getattr(HelperConnection, name)))

    async def scene():
        async with federation.helpers(), federation.serving() as running:
            return await finished(federation, running, steps)

    assert torch.equal(done(scene()), simulation.model)
    assert comparable(federation.record.events) == comparable(events)
    assert lost["begin"] == 2
    assert min(lost["release"], lost["publish"], lost["admit False"], lost["admit True"]) >= 6


@pytest.mark.parametrize("call", ["begin", "admit", "release", "publish", "abandon"])
@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "journal"])
def test_killed_after_a_call_and_before_its_entry_the_server_repeats_it(tmp_path, call, snapshot):
    """The helper has answered, and the server knows nothing of it."""
    config = SMALL if call != "abandon" else SMALL.model_copy(update={"buffer": td.Buffer(size=2)})
    simulation, events, steps = trace_of(config)
    federation = SecureFederation(tmp_path, config, simulation, range(6))

    async def scene():
        async with federation.helper():
            async with federation.serving() as running:
                group, answered = running.coordinator.link.helpers, asyncio.Event()
                original = getattr(group, call)

                async def lost(*given):
                    await original(*given)
                    answered.set()
                    await asyncio.Event().wait()

                setattr(group, call, lost)
                replaying = asyncio.ensure_future(federation.replay(running, steps))
                await answered.wait()
                replaying.cancel()
                await asyncio.gather(replaying, return_exceptions=True)
                await settled(running)
                shutil.copytree(federation.store, tmp_path / "copy")
            if not snapshot:
                federation.store, federation.record = tmp_path / "copy", Memory()
            async with federation.serving() as running:
                return await finished(federation, running, steps[federation.done :])

    assert torch.equal(done(scene()), simulation.model)
    told = comparable(federation.record.events)
    assert [event | {"bytes": 0} for event in told] == [e | {"bytes": 0} for e in comparable(events)]


def test_server_that_was_put_back_is_refused(federation, trace, tmp_path):
    _, _, steps = trace
    first, then = deliveries(steps, 4), deliveries(steps, 7)

    async def scene():
        async with federation.helper():
            async with federation.serving() as running:
                await federation.replay(running, steps[:first])
                await quiet(running)
                shutil.copytree(federation.store, tmp_path / "copy")
                await federation.replay(running, steps[first:then])
                await quiet(running)
            federation.store, federation.record = tmp_path / "copy", Memory()
            async with federation.serving() as running:
                with pytest.raises(RunError, match="the server was put back from a backup"):
                    await asyncio.shield(running.coordinator.ended)

    done(scene())


def test_server_that_lost_one_upload_that_was_admitted_is_refused(federation, trace, tmp_path):
    _, _, steps = trace
    first, then = deliveries(steps, 4), deliveries(steps, 5)

    async def scene():
        async with federation.helper():
            async with federation.serving() as running:
                await federation.replay(running, steps[:first])
                await quiet(running)
                shutil.copytree(federation.store, tmp_path / "copy")
                await federation.replay(running, steps[first:then])
            federation.store, federation.record = tmp_path / "copy", Memory()
            async with federation.serving() as running:
                with pytest.raises(RunError, match="which the server lost: the server was put back"):
                    await asyncio.shield(running.coordinator.ended)

    done(scene())


@pytest.mark.parametrize("uploads", [5, 7], ids=["within a batch", "after a version"])
def test_helper_that_was_put_back_is_refused(federation, trace, tmp_path, uploads):
    _, _, steps = trace
    first, then = deliveries(steps, 4), deliveries(steps, uploads)

    async def scene():
        async with contextlib.AsyncExitStack() as stack:
            async with federation.helper():
                running = await stack.enter_async_context(federation.serving())
                await federation.replay(running, steps[:first])
                await quiet(running)
            folder = tmp_path / "helper-0" / "helper"
            shutil.copytree(folder, tmp_path / "copy")
            async with federation.helper():
                await federation.replay(running, steps[first:then])
                await quiet(running)
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "copy", folder)
            async with federation.helper(moved=True):
                running.coordinator.link.wake()
                with pytest.raises(RunError, match="helper was put back from a backup"):
                    await federation.replay(running, steps[then:])

    done(scene())
