"""The client goes on by itself: after a lost connection, a restarted server, or when it was killed."""

import asyncio
import logging

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, app_of, closed_port, fetched, serving

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant

ALONE = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.Central()), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=1), buffer=td.Buffer(size=2), stop=td.Stop(trips=8),
    local=td.Local(steps=3, lr=0.1), evaluation=td.Evaluation(every_steps=1),
    service={"requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0},
)  # fmt: skip
TOGETHER = td.Config(
    data=td.Digits(partition=td.IID(clients=3)), model=td.MLP(hidden=(4,)),
    pace=td.Synchronous(cohort=2, selected=3), stop=td.Stop(steps=6), local=td.Local(steps=2),
    service={"requests_per_second": 10_000, "poll_seconds": 0.2},
    algorithm=td.FedAvg(),
)  # fmt: skip


def participant(running, name, client, simulation, seen=lambda line: None):
    trainer = ClientTrainer(name, app_of(simulation, client))
    state = running.keys / f"{name}.state"
    return Participant(running.address, running.signer(name), None, trainer, state, PATIENCE, seen)


def test_clients_take_part_in_a_synchronous_run_until_its_end(tmp_path):
    simulation = build(TOGETHER)

    async def scene():
        async with serving(TOGETHER, tmp_path) as running:
            everybody = [participant(running, str(c), c, simulation).take_part() for c in range(3)]
            assert await asyncio.wait_for(asyncio.gather(*everybody), PATIENCE) == ["steps"] * 3
            return running.record.events

    events = asyncio.run(scene())
    counted = [e for e in events if e["event"] == "upload" and e["accepted"]]
    assert len(counted) == 12
    assert all(e["staleness"] == 0 for e in counted)
    assert [e["version"] for e in events if e["event"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert events[-1]["event"] == "end"


@pytest.mark.parametrize("died", ["before the delivery", "after the delivery", "never"])
def test_a_killed_client_continues_with_its_exact_memory(died, tmp_path):
    simulation = build(ALONE)
    for _ in simulation.engine.run():
        pass

    async def scene():
        async with serving(ALONE, tmp_path) as running:
            trainer = ClientTrainer("0", app_of(simulation, 0))
            async with running.connect("0") as connection:  # by hand, up to where it dies
                memory_on_disk = ClientMemory(running.keys / "0.state" / connection.run)
                for number in range(4):
                    finished = trainer.train(await fetched(connection), memory_on_disk.memory)
                    memory_on_disk.keep(finished)
                    if number == 3 and died == "before the delivery":
                        break
                    assert (await connection.deliver(finished)).accepted
                    if number == 3 and died == "after the delivery":
                        break
                    memory_on_disk.commit(finished)
            reason = await asyncio.wait_for(participant(running, "0", 0, simulation).take_part(), PATIENCE)
            assert reason == "trips"
            await running.coordinator.ended
            return running.coordinator.model_state.aggregator.evaluated_model

    assert torch.equal(asyncio.run(scene()), simulation.model)


def test_a_client_goes_on_after_a_restart_of_the_server(tmp_path):
    simulation = build(ALONE)
    for _ in simulation.engine.run():
        pass

    async def scene():
        signers, seen = {}, []
        async with serving(ALONE, tmp_path, signers=signers) as running:
            client = participant(running, "0", 0, simulation, seen.append)
            work = asyncio.ensure_future(client.take_part())
            while len(seen) < 3:
                await asyncio.sleep(0.01)
        snapshot, events = running.record.snapshots[-1], running.record.events
        async with serving(ALONE, tmp_path, running.record, snapshot, signers) as again:
            assert again.coordinator.run == running.coordinator.run
            client._address = again.address  # a port of its own, in a test
            assert await asyncio.wait_for(work, PATIENCE) == "trips"
            await again.coordinator.ended
            return again.coordinator.model_state.aggregator.evaluated_model, events

    model, events = asyncio.run(scene())
    assert torch.equal(model, simulation.model)
    assert [e["trip"] for e in events if e["event"] == "upload"] == list(range(8))


def test_a_cancelled_client_gives_its_ticket_back(tmp_path):
    simulation = build(ALONE)

    async def scene():
        async with serving(ALONE, tmp_path) as running:
            client = participant(running, "0", 0, simulation)
            begun, go_on = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()
            train = client._trainer.train

            def slowly(*task):
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
                return train(*task)

            client._trainer.train = slowly
            work = asyncio.ensure_future(client.take_part())
            await begun.wait()
            assert len(running.coordinator.run_state.book.in_flight) == 1
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            go_on.set()
            assert len(running.coordinator.run_state.book.in_flight) == 0
            assert running.coordinator.run_state.given_up == 1

    asyncio.run(scene())


def test_the_memory_of_a_refused_upload_is_not_committed(tmp_path):
    config = td.Config(**(dict(TOGETHER) | {
        "algorithm": td.FedAC(), "pace": td.Asynchronous(concurrency=2), "stop": td.Stop(trips=3),
        "buffer": td.Buffer(size=1, staleness_bound=0), "evaluation": td.Evaluation(every_steps=100),
    }))  # fmt: skip
    simulation = build(config)

    async def scene():
        async with serving(config, tmp_path) as running, running.connect("1") as other:
            client = participant(running, "0", 0, simulation)
            loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
            train, finished = client._trainer.train, []

            def late(*task):
                finished.append(train(*task))
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
                return finished[-1]

            client._trainer.train = late
            work = asyncio.ensure_future(client.take_part())
            await begun.wait()
            trainer = ClientTrainer("1", app_of(simulation, 1))
            assert (await other.deliver(trainer.train(await fetched(other), {}))).accepted
            go_on.set()
            assert await asyncio.wait_for(work, PATIENCE) == "trips"
            return finished, client._memory

    finished, memory_on_disk = asyncio.run(scene())
    assert len(finished) == 2  # the first was too stale, the second counted
    assert torch.equal(memory_on_disk.memory["control"], finished[1].memory["control"])
    assert torch.equal(finished[0].memory["control"], finished[0].upload.vectors["control"])
    # had the first been remembered, the second would have uploaded the difference to it
    assert torch.equal(finished[1].memory["control"], finished[1].upload.vectors["control"])
    assert memory_on_disk.pending() == []


def test_a_trip_that_cannot_be_trained_is_given_back(tmp_path):
    async def scene():
        async with serving(ALONE, tmp_path) as running:
            client = participant(running, "0", 0, build(ALONE))

            def broken(*task):
                raise ValueError("label 77 of 10")

            client._trainer.train = broken
            with pytest.raises(RunError, match=r"trip 0, in the client's own model.*: ValueError: label 77"):
                await client.take_part()
            assert running.coordinator.run_state.given_up == 1
            assert running.coordinator.run_state.book.in_flight == {}

    asyncio.run(scene())


APP = """
import tardigrad as td
from tardigrad.service.client.app import Client
from tardigrad.core.draws import key

def client():
    federation = td.Digits(partition=td.Central()).federation(key(0, "data"))
    module = td.MLP(hidden=(4,)).build_with(None, federation.shape, federation.classes)
    return Client(module, federation.clients.load(0), head=federation.head, transform=federation.transform)
"""


def test_a_client_process_is_killed_and_the_bits_are_the_same(commands, tmp_path):
    config = ALONE.model_copy(update={"stop": td.Stop(trips=60)})
    simulation = build(config)
    for _ in simulation.engine.run():
        pass
    (tmp_path / "app.py").write_text(APP)

    def join(running):
        words = "--app", f"{tmp_path}/app.py:client", "--key", running.keys / "0.key", "--insecure"
        return commands.start("join", running.address, *words)

    async def scene():
        async with serving(config, tmp_path) as running:
            running.signer("0")
            run_state = running.coordinator.run_state
            process = join(running)
            try:
                while run_state.trips < 15:
                    await asyncio.sleep(0.002)
                process.kill()
                process.wait()
                process = join(running)
                assert await asyncio.wait_for(asyncio.shield(running.coordinator.ended), PATIENCE) == "trips"
                assert await asyncio.to_thread(process.wait) == 0
            finally:
                if process.poll() is None:
                    process.kill()
            return running.coordinator.model_state.aggregator.evaluated_model

    assert torch.equal(asyncio.run(scene()), simulation.model)


def test_a_server_that_does_not_listen_is_named_once_and_tried_again_until_it_does(tmp_path, caplog):
    """The client begins before the server: it logs one sentence without gRPC's words, and then joins."""
    caplog.set_level(logging.DEBUG, "tardigrad.service")
    simulation = build(ALONE)

    def tries():
        return [record for record in caplog.records if "no server listens" in record.getMessage()]

    async def scene(address):
        async with serving(ALONE, tmp_path) as running:
            client = participant(running, "0", 0, simulation)
            there, client._address = client._address, address
            work = asyncio.ensure_future(client.take_part())
            while len(tries()) < 3:
                await asyncio.sleep(0.01)
            client._address = there
            assert await asyncio.wait_for(work, PATIENCE) == "trips"

    with closed_port() as address:
        asyncio.run(scene(address))
    assert tries()[0].getMessage() == (
        f"no server listens at {address}; check that it runs, and its host and port "
        "(trying again for up to 300 s)"
    )
    assert [record.levelname for record in tries()[:3]] == ["INFO", "DEBUG", "DEBUG"]
    assert not any("UNAVAILABLE" in record.getMessage() for record in caplog.records)


def test_a_client_without_patience_says_why_it_gave_up(tmp_path):
    trainer, signer = ClientTrainer("0", app_of(build(ALONE), 0)), Signer("0", Ed25519PrivateKey.generate())
    with closed_port() as address:
        client = Participant(address, signer, None, trainer, tmp_path, 0.0)
        said = f"^gave up after 0 s without success: no server listens at {address}"
        with pytest.raises(RunError, match=said):
            asyncio.run(client.take_part())
