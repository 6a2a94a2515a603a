"""Operators steer one of several runs, while others have ended, and clients that take any run move on."""

import asyncio
import contextlib

import grpc
import pytest
from service_harness import PATIENCE, app_of, fetched
from several_runs import serving_several

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.monitor.operator_following import told_status
from tardigrad.service.monitor.status import STATUS
from tardigrad.service.protocol.refusals import Cause

FOREVER = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=()), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1), stop=td.Stop(trips=10**6),
    local=td.Local(steps=1),
    service={
        "requests_per_second": 10_000, "poll_seconds": 0.1, "linger_seconds": 0.0,
        "idle_seconds": PATIENCE, "snapshot_seconds": 1e6,
    },
)  # fmt: skip
SHORT = FOREVER.model_copy(update={"stop": td.Stop(trips=1)})
TWO = {"heart": FOREVER, "lung": FOREVER}


def run(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def refusal(call):
    """Why a call is refused, and with which sentence."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return dict(caught.value.trailing_metadata())["tardigrad-why"], caught.value.details()


async def all_of(stream):
    return [part async for part in stream]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def one_trip(running, name):
    """Client 0 delivers an upload to the run of this name, which may fail because of it."""
    async with running.connect("0", name) as connection:
        trainer = ClientTrainer("0", app_of(build(FOREVER), 0))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await connection.deliver(trainer.train(await fetched(connection), {}))


async def left(run):
    """Wait until the run is served no more, though others go on."""
    await until(lambda: run.answering is not run.servicer and run._stopped)


def states(root):
    return {listing.name: listing.state for listing in root.runs}


def test_acts_on_a_run_that_is_over_change_nothing_and_say_so(tmp_path):
    async def scene():
        async with serving_several(tmp_path, {"heart": SHORT, "lung": FOREVER}) as running:
            await one_trip(running, "heart")
            await left(running.runs["heart"])
            await until(lambda: running.runs["heart"].served is not None)
            async with running.operator() as root:
                assert states(root) == {"heart": "over", "lung": "running"}
                for act in ({"act": "pause"}, {"act": "stop"}, {"act": "eject", "client": "0"},
                            {"act": "limits", "limits": {"concurrency": 1.0}}):  # fmt: skip
                    steered = await root.steer(run="heart", **act)
                    assert (steered.changed, steered.state) == (False, "over")
                why, sentence = await refusal(all_of(root.export("heart")))
                assert (why, sentence) == (
                    Cause.ACT, "the run is over, and its model is in its folder on the server"
                )  # fmt: skip
                parts = await all_of(root.follow("heart"))
                assert STATUS.validate_json(parts[1].status).over == "trips"
                assert (await root.steer("pause", run="lung")).changed
        again = serving_several(tmp_path, {"heart": SHORT, "lung": FOREVER}, running.signers)
        async with again as running, running.operator() as root:
            assert states(root) == {"heart": "over", "lung": "paused"}
            for call in (root.steer("pause", run="heart"), all_of(root.follow("heart"))):
                why, sentence = await refusal(call)
                assert (why, sentence) == (
                    Cause.ACT,
                    "the run heart was over (trips) when the server began; its result is in its folder there",
                )
            assert "name one of heart, lung" in (await refusal(root.steer("pause")))[1]

    run(scene())


@pytest.mark.parametrize("how", ["raises", "cannot be finished"])
def test_acts_on_a_run_that_has_failed_are_refused_with_a_sentence(tmp_path, how):
    def fail(*_):
        raise RunError("the disk has burnt")

    def prepare(name, run):
        if name == "heart" and how == "raises":
            run.plan.aggregator.add = fail
        elif name == "heart":
            object.__setattr__(run, "finish", fail)

    async def scene():
        async with serving_several(tmp_path, {"heart": SHORT, "lung": FOREVER}, prepare=prepare) as running:
            await one_trip(running, "heart")
            await left(running.runs["heart"])
            async with running.operator() as root:
                assert states(root) == {"heart": "failed", "lung": "running"}
                calls = [root.steer(act, run="heart") for act in ("pause", "stop")]
                for call in [*calls, all_of(root.export("heart"))]:
                    assert await refusal(call) == (
                        Cause.FAILED, "the run has failed; the server's log says why"
                    )  # fmt: skip
                parts = await all_of(root.follow("heart"))
                assert STATUS.validate_json(parts[1].status).failed == "the disk has burnt"
            told = told_status(running.address, running.signer("root"), None, "heart")
            assert [status.failed for status in await all_of(told)] == ["the disk has burnt"]  # and it ends

    run(scene())


def test_export_that_is_under_way_when_its_run_ends_is_refused_and_does_not_hang(tmp_path):
    async def scene():
        async with serving_several(tmp_path, TWO) as running, running.operator() as root:
            heart = running.runs["heart"]
            acts, waits = heart.coordinator.acts, asyncio.Event()
            released = acts.released_model

            async def slowly():
                found = await released()
                waits.set()
                await left(heart)
                return found

            acts.released_model = slowly
            exporting = asyncio.ensure_future(all_of(root.export("heart")))
            await waits.wait()
            assert (await root.steer("stop", run="heart")).changed
            assert await refusal(exporting) == (Cause.STOPPING, "the run is not served any more")

    run(scene())


def any_client(running, name, went):
    """A client that takes any run, at work; `went` is told which runs it was sent to."""
    app = app_of(build(FOREVER), int(name))
    return asyncio.ensure_future(running.any_run(name, lambda run: app, went.append))


def trips(running, name):
    return running.runs[name].coordinator.run_state.trips


async def cancelled(*clients):
    """Cancel clients until they have ended: gRPC may swallow a cancellation that meets the end of a call."""
    for client in clients:
        while not client.done():
            client.cancel()
            await asyncio.wait({client}, timeout=0.1)
    await asyncio.gather(*clients, return_exceptions=True)


def test_client_that_is_ejected_from_one_run_goes_on_with_another(tmp_path):
    async def scene():
        went = []
        async with serving_several(tmp_path, TWO) as running, running.operator() as root:
            client = any_client(running, "0", went)
            await until(lambda: trips(running, "heart"))
            assert (await root.steer("eject", run="heart", client="0")).changed
            await until(lambda: trips(running, "lung"))
            assert went == ["heart", "lung"]
            await cancelled(client)
            again = any_client(running, "0", went)  # it has no reason to ask for the first
            before = trips(running, "lung")
            await until(lambda: trips(running, "lung") > before)
            assert went == ["heart", "lung", "lung"]
            assert (await root.steer("eject", run="lung", client="0")).changed
            with pytest.raises(RunError, match="0 was ejected by the operator from all its runs that go on"):
                await again

    run(scene())


def test_client_that_takes_any_run_leaves_a_paused_one_if_another_has_work(tmp_path):
    async def scene():
        went = []
        async with serving_several(tmp_path, TWO) as running, running.operator() as root:
            await root.steer("pause", run="heart")
            client = any_client(running, "0", went)
            await until(lambda: trips(running, "lung"))
            assert went == ["lung"]
            await root.steer("resume", run="heart")
            await root.steer("pause", run="lung")
            await until(lambda: trips(running, "heart"))
            assert went == ["lung", "heart"]
            await root.steer("pause", run="heart")
            await until(lambda: len(went) > 4)  # it waits, in one or the other
            assert not client.done()
            before = trips(running, "heart"), trips(running, "lung")
            await root.steer("resume", run="heart")
            await until(lambda: trips(running, "heart") > before[0])
            assert trips(running, "lung") == before[1]
            await cancelled(client)

    run(scene())
