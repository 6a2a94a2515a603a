"""A server whose store fails: the client is told to come again, and nothing has happened."""

import asyncio
import contextlib

import grpc
import pytest
import torch
from failing_store import FailingStore
from json_lines_store import JsonLinesStore
from service_harness import PATIENCE, Memory, Puppet, app_of, comparable, serving, trace_of

import tardigrad as td
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import RetryLater
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.sqlite import SqliteStore

CONFIG = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3, staleness_bound=2, most_per_client=3),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2), delay=td.HalfNormal(give_up=0.1),
    local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "linger_seconds": 0.2, "snapshot_seconds": 1e6,
             "poll_seconds": 100.0},
)  # fmt: skip


async def is_done(puppet, what, trip):
    """Let a client do a step; return False if it was told to come again because the store has failed."""
    try:
        if what == "fetch":
            found = await puppet.connection.fetch(puppet.holding)
            if isinstance(found, RetryLater):
                assert "fails on purpose" in found.reason
                return False
            assert found.task.trip == trip
            puppet.holding[trip] = found
        elif what == "give_up":
            await puppet.connection.give_up(trip, puppet.holding[trip].epoch)
        else:
            await puppet.deliver(trip)
    except grpc.aio.AioRpcError as error:
        if "fails on purpose" not in error.details():
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda folder: MemoryStore(), "append"),
        (SqliteStore, "append"),
        (SqliteStore, "write"),
        (SqliteStore, "write_together"),
        (SqliteStore, "sync"),
        (JsonLinesStore, "append"),
    ],
    ids=[
        "memory, append",
        "sqlite, append",
        "sqlite, write",
        "sqlite, together",
        "sqlite, sync",
        "json, append",
    ],
)
def test_a_failed_write_changes_nothing_and_the_run_ends_with_the_same_bits(
    make, method, tmp_path, monkeypatch
):
    if method == "write":
        monkeypatch.setattr("tardigrad.service.server.upload_reception.SMALL", 0)
    simulation, events, steps = trace_of(CONFIG)

    async def scene(store):
        async with (
            serving(CONFIG, tmp_path, keys=tmp_path / "keys", store=store) as running,
            contextlib.AsyncExitStack() as stack,
        ):
            coordinator, puppets = running.coordinator, {}
            for what, client, trip in steps:
                if client not in puppets:
                    connection = await stack.enter_async_context(running.connect(str(client)))
                    trainee = ClientTrainer(str(client), app_of(simulation, client))
                    puppets[client] = Puppet(connection, trainee, tmp_path / f"{client}.state")
                before, entries = coordinator.run_state.state(), store.entries(0)
                while not await is_done(puppets[client], what, trip):
                    assert coordinator.run_state.state() == before
                    assert store.entries(0) == entries
            await asyncio.wait_for(asyncio.shield(coordinator.ended), PATIENCE)
            assert running.refusals == {Cause.DISK: store.failures}
            return coordinator.model_state.aggregator.evaluated_model, comparable(running.record.events)

    with contextlib.closing(FailingStore(make(tmp_path), method, every=3)) as store:
        model, told = asyncio.run(scene(store))
        assert store.failures > 5
    assert torch.equal(model, simulation.model)
    assert told == comparable(events)


def test_a_server_recovers_from_a_store_of_ones_own(tmp_path):
    simulation, _, steps = trace_of(CONFIG)
    signers, puppets = {}, {}

    async def visit(store, steps):
        async with serving(
            CONFIG, tmp_path, Memory(), keys=tmp_path / "keys", signers=signers, store=store
        ) as running:
            found = running.coordinator.run_state.state()
            for what, client, trip in steps:
                async with running.connect(str(client)) as connection:
                    if client not in puppets:
                        trainee = ClientTrainer(str(client), app_of(simulation, client))
                        puppets[client] = Puppet(connection, trainee, tmp_path / f"{client}.state")
                    puppets[client].connection = connection
                    assert await is_done(puppets[client], what, trip)
            if len(steps) < half:  # as if the process were killed: no snapshot is made
                running.coordinator.ended.set_result("killed")
            else:
                await asyncio.wait_for(asyncio.shield(running.coordinator.ended), PATIENCE)
            return found, running.coordinator.run_state.state(), running.coordinator.model_state.aggregator

    half = len(steps) // 2 + 1
    with contextlib.closing(JsonLinesStore(tmp_path)) as store:
        _, state, _ = asyncio.run(visit(store, steps[: half - 1]))
    with contextlib.closing(JsonLinesStore(tmp_path)) as store:
        found, _, aggregator = asyncio.run(visit(store, steps[half - 1 :]))
    assert found == state
    assert torch.equal(aggregator.evaluated_model, simulation.model)
