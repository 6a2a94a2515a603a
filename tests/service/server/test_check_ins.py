"""Check-ins: clients that wait for a task, and what they are told."""

import asyncio
import errno
import os

from service_harness import PATIENCE, app_of, fetched, serving, with_limits
from upload_clients import raising, two_clients

import tardigrad as td
from tardigrad.core.outcomes import Ticket
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import RetryLater, RunIsOver
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.store.contract import StoreError

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=4),
    service={"requests_per_second": 1000, "poll_seconds": 0.5},
)  # fmt: skip
SIMULATION = build(CONFIG)


def test_waiting_clients_are_not_journaled_and_served_in_their_order(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            coordinator = running.coordinator
            first = [await coordinator.check_in(name, frozenset(), PATIENCE) for name in ("a", "b")]
            waiting = [
                asyncio.ensure_future(coordinator.check_in(f"c{n}", frozenset(), PATIENCE))
                for n in range(1000)
            ]
            while coordinator.waiting < 1000:
                await asyncio.sleep(0)
            assert not any(one.done() for one in waiting)
            assert len(coordinator._store.entries(0)) == 2
            for ticket in first:
                await coordinator.give_up(ticket.client, ticket.trip, coordinator.epoch)
            done = await asyncio.gather(*waiting[:2])
            assert [ticket.trip for ticket in done] == [2, 3]
            assert sum(one.done() for one in waiting) == 2
            coordinator.dismiss()
            assert (await asyncio.gather(*waiting))[2:] == [None] * 998

    asyncio.run(scene())


def test_client_that_does_not_wait_any_more_gets_its_ticket_at_the_next_check_in(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            coordinator = running.coordinator
            assert await coordinator.check_in("a", frozenset(), 0.0) is None  # its time was over
            hung_up = asyncio.ensure_future(coordinator.check_in("b", frozenset(), PATIENCE))
            while "b" not in coordinator._check_ins._granting:
                await asyncio.sleep(0)
            hung_up.cancel()
            tickets = [await coordinator.check_in(name, frozenset(), PATIENCE) for name in ("a", "b")]
            assert [(ticket.client, ticket.trip) for ticket in tickets] == [("a", 0), ("b", 1)]
            assert len(coordinator._store.entries(0)) == 2  # none was granted twice
            assert coordinator.waiting == 0

    asyncio.run(scene())


def test_ticket_that_comes_at_the_moment_when_the_time_is_over_is_taken(tmp_path, monkeypatch):
    ticket = Ticket(7, "a", 0, 0.0)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            check_ins, soon = running.coordinator._check_ins, asyncio.get_running_loop().call_soon
            with monkeypatch.context() as patch:  # the ticket comes first, then the end of the time
                patch.setattr(check_ins, "grant", lambda: soon(check_ins._waiting.serve, "a", ticket))
                assert await check_ins.check_in("a", frozenset(), 0.0) == ticket

    asyncio.run(scene())


def test_lost_task_is_sent_again_until_the_run_is_over(tmp_path):
    async def scene():
        async with (
            serving(CONFIG, tmp_path) as running,
            running.connect("0") as ann,
            running.connect("1") as bob,
            running.connect("2") as eve,
        ):
            tasks = [await fetched(ann), await fetched(bob)]
            assert isinstance(await eve.fetch(), RetryLater)
            again = await fetched(ann)  # it lost its task, and gets the same
            assert (again.task.trip, again.seed) == (tasks[0].task.trip, tasks[0].seed)
            assert isinstance(await ann.fetch([again.task.trip]), RetryLater)  # one at a time
            progress = []

            async def watch():
                async for one in eve.watch():
                    progress.append(one)

            watching = asyncio.ensure_future(watch())
            for _ in range(2):
                for client, connection in enumerate((ann, bob)):
                    trainee = ClientTrainer(str(client), app_of(SIMULATION, client))
                    answer = await connection.deliver(trainee.train(await fetched(connection), {}))
                    assert answer.accepted
            assert answer.over == "trips"
            assert await fetched(eve) == RunIsOver("trips")
            await asyncio.wait_for(watching, PATIENCE)
            assert progress[-1].over == "trips"
            assert progress[-1].version == 2

    asyncio.run(scene())


def test_client_that_waits_is_told_that_the_disk_is_full(tmp_path, monkeypatch):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, _):
            full = StoreError(os.strerror(errno.ENOSPC))
            with monkeypatch.context() as patch:
                patch.setattr(running.coordinator._store, "append", raising(full))
                found = await ann.fetch()
            assert "No space left" in found.reason
            assert found.seconds >= 5
            assert running.refusals == {Cause.DISK: 1}
            assert (await fetched(ann)).task.trip == 0

    asyncio.run(scene())


def test_client_that_waits_in_vain_is_told_why(tmp_path):
    async def scene():
        async with two_clients(tmp_path) as (running, ann, bob), running.connect("2") as eve:
            await fetched(ann)
            await fetched(bob)
            with_limits(running, poll_seconds=0.2)
            assert (await eve.fetch()).reason.startswith("enough clients are at work, or")
            assert running.refusals == {}

    asyncio.run(scene())
