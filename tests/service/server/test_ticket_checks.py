"""Checks of tickets: repeated deliveries, and trip numbers that are given again after a power failure or a
restore."""

import asyncio
import shutil
import sqlite3
from dataclasses import replace

import grpc
import pytest
import torch
from service_harness import PATIENCE, Memory, app_of, fetched, serving
from upload_clients import CONFIG as UPLOADS
from upload_clients import code_of, with_delta
from upload_clients import trained as upload_of

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.store.sqlite import JOURNAL

LIMITS = {"requests_per_second": 10_000, "poll_seconds": 0.2}
CONFIG = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.IID(clients=3)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=3), buffer=td.Buffer(size=1), stop=td.Stop(trips=4),
    local=td.Local(steps=2, lr=0.1), service=LIMITS,
)  # fmt: skip
ROUNDS = {
    "algorithm": td.SCAFFOLD(), "pace": td.Synchronous(cohort=1, selected=3), "buffer": td.Buffer(),
    "stop": td.Stop(trips=6),
}  # fmt: skip
SIMULATION = build(CONFIG)
NAMES = ("ann", "bob", "eve")


def trainee(name):
    return ClientTrainer(name, app_of(SIMULATION, NAMES.index(name)))


async def trained(connection, name, memory=None):
    return trainee(name).train(await fetched(connection), memory or {})


@pytest.mark.parametrize("config", [CONFIG, td.Config(**(dict(CONFIG) | ROUNDS))], ids=["fedac", "scaffold"])
def test_client_goes_on_after_a_power_failure_lost_its_trip(config, tmp_path):
    signers, state = {}, tmp_path / "state"

    async def before():
        """ann's first upload counts; of her second trip, and of bob's, the disk has nothing."""
        async with (
            serving(config, tmp_path / "run", signers=signers) as running,
            running.connect("ann") as ann,
            running.connect("bob") as bob,
        ):
            remembering = ClientMemory(state / ann.run)
            first = await trained(ann, "ann")
            remembering.keep(first)
            assert (await ann.deliver(first)).accepted
            remembering.commit(first)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            lost = await trained(ann, "ann", remembering.memory)
            assert lost.trip == 1
            remembering.keep(lost)  # and it was about to be delivered
            assert (await trained(bob, "bob")).trip == 2
            return first, lost

    async def afterwards(first):
        async with (
            serving(config, tmp_path / "copy", signers=signers) as running,
            running.connect("bob") as bob,
            running.connect("eve") as eve,
        ):
            others = [(eve, await trained(eve, "eve")), (bob, await trained(bob, "bob"))]
            assert [finished.trip for _, finished in others] == [1, 2]  # these numbers are others' now
            given, seen, learner = [], [], trainee("ann")
            train = learner.train

            def watched(task, memory):
                given.append((task.task.trip, memory))
                return train(task, memory)

            learner.train = watched
            ann = Participant(
                running.address, running.signer("ann"), None, learner, state, PATIENCE, seen.append
            )
            work = asyncio.ensure_future(ann.take_part())
            while not seen and not work.done():
                await asyncio.sleep(0.01)
            for connection, finished in others:
                await connection.deliver(finished)
            reason = await asyncio.wait_for(work, PATIENCE)
            assert reason == "trips"
            assert running.refusals == {Cause.UNSOLICITED: 1}
            trip, memory = given[0]
            assert trip == 3
            assert memory.keys() == first.memory.keys() != set()
            assert all(torch.equal(memory[name], first.memory[name]) for name in memory)
            uploads = [event for event in running.record.events if event["event"] == "upload"]
            assert [(e["trip"], e["client"]) for e in uploads[:2]] == [(0, "ann"), (3, "ann")]
            assert uploads[1]["accepted"]
            assert ann._memory.pending() == []

    first, _ = asyncio.run(before())
    asyncio.run(afterwards(first))


def test_upload_of_a_lost_trip_is_refused_although_its_number_is_in_use_again(tmp_path):
    """Under way, ended, in a snapshot: never 'not yours', and nothing happens to the other's ticket."""
    signers = {}

    async def before():
        async with (
            serving(CONFIG, tmp_path / "run", signers=signers) as running,
            running.connect("ann") as ann,
        ):
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            return await trained(ann, "ann")

    async def afterwards(lost):
        async with (
            serving(CONFIG, tmp_path / "copy", signers=signers) as running,
            running.connect("ann") as ann,
            running.connect("eve") as eve,
        ):
            assert await code_of(ann.deliver(lost)) is grpc.StatusCode.NOT_FOUND
            other = await trained(eve, "eve")
            assert other.trip == lost.trip
            assert other.epoch != lost.epoch
            assert await code_of(ann.deliver(lost)) is grpc.StatusCode.NOT_FOUND
            assert not await ann.give_up(lost.trip, lost.epoch)
            assert len(running.coordinator.run_state.book.in_flight) == 1
            assert (await eve.deliver(other)).accepted
            assert await code_of(ann.deliver(lost)) is grpc.StatusCode.NOT_FOUND
            await running.coordinator.recovery.snapshot()  # the answer is in the journal's table from now on
            assert await code_of(ann.deliver(lost)) is grpc.StatusCode.NOT_FOUND
            assert (await eve.deliver(other)).accepted  # asked again, the answer is the same
            assert await code_of(ann.deliver(other)) is grpc.StatusCode.PERMISSION_DENIED
            return running.refusals

    lost = asyncio.run(before())
    assert asyncio.run(afterwards(lost)) == {Cause.UNSOLICITED: 4, Cause.NOT_YOURS: 1}


def test_tickets_keep_their_epoch_over_a_restart(tmp_path):
    signers, record = {}, Memory()

    async def process(snapshot, held):
        async with (
            serving(CONFIG, tmp_path, record, snapshot, signers) as running,
            running.connect("ann") as ann,
        ):
            again = await trained(ann, "ann")  # it is given the same ticket
            if held is not None:
                assert again.epoch == held.epoch != running.coordinator.epoch
                assert (await ann.deliver(held)).accepted
            return again

    held = asyncio.run(process(None, None))
    asyncio.run(process(record.snapshots[-1], held))


def as_of_an_older_version(folder):
    """Take the columns away that an older version did not write."""
    with sqlite3.connect(folder / JOURNAL) as database:
        database.execute("ALTER TABLE entries DROP COLUMN epoch")
        database.execute("ALTER TABLE answers DROP COLUMN epoch")
    database.close()


@pytest.mark.parametrize("stored", ["journal", "snapshot"])
def test_tickets_without_an_epoch_work_for_clients_without_epochs(stored, tmp_path):
    signers, record = {}, Memory()

    async def before():
        async with (
            serving(CONFIG, tmp_path, record, signers=signers) as running,
            running.connect("ann") as ann,
            running.connect("bob") as bob,
        ):
            done, held = await trained(bob, "bob"), await trained(ann, "ann")
            assert (await bob.deliver(done)).accepted
            if stored == "journal":
                running.coordinator.ended.set_result("killed")  # it writes no snapshot
            return replace(done, epoch=0), replace(held, epoch=0)

    async def afterwards(done, held):
        snapshot = record.snapshots[-1] if stored == "snapshot" else None
        if snapshot is not None:
            del snapshot[1]["course"]["epochs"]
        async with (
            serving(CONFIG, tmp_path, Memory(), snapshot, signers) as running,
            running.connect("ann") as ann,
            running.connect("bob") as bob,
        ):
            assert (await bob.deliver(done)).accepted  # the recorded answer
            assert (await ann.deliver(held)).accepted
            new = await trained(ann, "ann")
            old = replace(new, epoch=0)
            with pytest.raises(grpc.aio.AioRpcError, match="upgrade this client"):
                await ann.deliver(old)
            assert (await ann.deliver(new)).accepted
            return running.refusals

    trips = asyncio.run(before())
    as_of_an_older_version(tmp_path)
    assert asyncio.run(afterwards(*trips)) == {Cause.NO_EPOCH: 1}


def test_repeated_delivery_gets_the_same_answer_and_counts_once(tmp_path):
    async def scene():
        async with serving(UPLOADS, tmp_path) as running, running.connect("ann") as ann:
            finished = await upload_of(ann)
            answers = [await ann.deliver(finished) for _ in range(3)]
            assert answers[0] == answers[1] == answers[2]
            await running.coordinator.recovery.snapshot()  # the answer is kept elsewhere from now on
            assert await ann.deliver(finished) == answers[0]
            other = with_delta(finished, 1.0)
            assert await code_of(ann.deliver(other)) is grpc.StatusCode.ALREADY_EXISTS
            assert running.coordinator.run_state.trips == 1

    asyncio.run(scene())
