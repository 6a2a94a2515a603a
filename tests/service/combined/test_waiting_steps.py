"""A step that waits for a layer on a server: uploads go on, downloads and check-ins wait, nothing is lost."""

import asyncio
import shutil

import torch
from service_harness import PATIENCE, Memory, Puppet, app_of, comparable, replay, serving, settled, trace_of

import tardigrad as td
from tardigrad.service.client.client_trainer import ClientTrainer
from waiting_layer import WaitingLayer

CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=2, most_per_client=2),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2), local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "snapshot_seconds": 1e6},
)  # fmt: skip


async def let_each(layer, coordinator):
    """Let each step go on after it was closed."""
    done = 0
    while not coordinator.ended.done():
        if len(layer.waited_for) > done:
            layer.let(layer.waited_for[done])
            done += 1
        await asyncio.sleep(0)


def test_served_trace_has_the_same_bits_although_every_step_waits(tmp_path):
    simulation, events, steps = trace_of(CONFIG)

    async def scene():
        layer = WaitingLayer()
        async with serving(CONFIG, tmp_path / "run", layers=[layer]) as running:
            letting = asyncio.ensure_future(let_each(layer, running.coordinator))
            await replay(running, simulation, steps)
            await letting
            return running.coordinator.model_state.aggregator.evaluated_model, running.record.events

    model, told = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    assert torch.equal(model, simulation.model)
    assert comparable(told) == comparable(events)


def test_while_a_step_waits_uploads_count_and_check_ins_wait(tmp_path):
    simulation = trace_of(CONFIG)[0]

    async def scene():
        layer = WaitingLayer()
        async with serving(CONFIG, tmp_path / "run", layers=[layer]) as running:
            coordinator, puppets = running.coordinator, []
            for client in range(4):
                connection = running.connect(str(client))
                await connection.__aenter__()
                trainee = ClientTrainer(str(client), app_of(simulation, client))
                puppets.append(Puppet(connection, trainee, tmp_path / str(client)))
            trips = [await puppet.fetch() for puppet in puppets]
            for puppet, trip in zip(puppets[:3], trips):  # two fill the buffer, the third is for the next
                assert (await puppet.deliver(trip)).accepted
            await coordinator._threads.in_model_thread(lambda: None)
            assert coordinator.run_state.book.version == 1
            assert coordinator.model_state.aggregator.version == 0
            fetching = asyncio.ensure_future(puppets[0].fetch())
            while not coordinator.waiting:
                await asyncio.sleep(0)
            await coordinator.recovery.snapshot()
            await settled(running)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            assert not fetching.done(), "check-ins wait"
            layer.let(0)
            assert await fetching == 4
            assert torch.equal(
                puppets[0].holding[4].task.vectors["model"], coordinator.model_state.aggregator.state["model"]
            )
            for puppet in puppets:
                await puppet.connection.__aexit__(None, None, None)
            return running.record.snapshots[0], coordinator.model_state.aggregator.state["model"]

    async def recovered(snapshot):
        layer = WaitingLayer()
        keys = tmp_path / "run" / "keys"
        async with serving(
            CONFIG, tmp_path / "copy", Memory(), snapshot, keys=keys, layers=[layer]
        ) as running:
            coordinator = running.coordinator
            assert coordinator.model_state.waiting
            layer.let(0)
            await coordinator.broadcast(1)
            return coordinator.model_state.aggregator.state["model"]

    snapshot, model = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    assert torch.equal(asyncio.run(asyncio.wait_for(recovered(snapshot), PATIENCE)), model)


def test_step_that_waited_when_the_server_stopped_is_made_when_it_starts_again(tmp_path):
    """Also if the layer is ready by then, so that it never tells."""
    simulation, events, steps = trace_of(CONFIG)
    last = CONFIG.stop.trips // CONFIG.buffer.size - 1
    record, signers = Memory(), {}

    async def stopped():
        layer = WaitingLayer(open_to=last)
        async with serving(CONFIG, tmp_path / "run", record, layers=[layer], signers=signers) as running:
            replaying = asyncio.ensure_future(replay(running, simulation, steps))
            while not (running.coordinator.run_state.over and running.coordinator.model_state.waiting):
                await asyncio.sleep(0)
            replaying.cancel()
            await asyncio.gather(replaying, return_exceptions=True)

    async def started_again():
        layers = [WaitingLayer(open_to=last + 1)]
        async with serving(
            CONFIG, tmp_path / "run", record, record.snapshots[-1], signers, layers=layers
        ) as running:
            await running.coordinator.ended
            return running.coordinator.model_state.aggregator.evaluated_model

    asyncio.run(asyncio.wait_for(stopped(), PATIENCE))
    assert torch.equal(asyncio.run(asyncio.wait_for(started_again(), PATIENCE)), simulation.model)
    assert comparable(record.events) == comparable(events)
