"""Nothing that was acknowledged is lost, whenever the server dies."""

import asyncio
import contextlib
import shutil

import grpc
import pytest
import torch
from service_harness import (
    PATIENCE,
    Memory,
    Puppet,
    app_of,
    assert_simulated,
    comparable,
    enrolled_key,
    serving,
    settled,
    trace_of,
    two_puppets,
)

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection

CONFIG = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4),
    buffer=td.Buffer(size=3, staleness_bound=2, most_per_client=3),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2), delay=td.HalfNormal(give_up=0.1),
    local=td.Local(batch_size=32, lr=0.1), service={"requests_per_second": 10_000, "linger_seconds": 0.2},
)  # fmt: skip


class Stopped(Memory):
    """A record as it was at some moment: events after the last snapshot are cut off, as a folder's are."""

    def __init__(self, record):
        super().__init__()
        self.last = record.snapshots[-1] if record.snapshots else None
        self.events = record.events[: self.last[1]["events"]] if self.last else []


def test_a_copy_of_the_disk_at_any_moment_goes_on_exactly(where_large, tmp_path):
    simulation, _, steps = trace_of(CONFIG)
    copies = []

    async def straight():
        async with serving(CONFIG, tmp_path / "run") as running:
            coordinator = running.coordinator
            puppets = {}
            async with contextlib.AsyncExitStack() as stack:
                for number, (what, client, trip) in enumerate(steps):
                    if client not in puppets:
                        connection = await stack.enter_async_context(running.connect(str(client)))
                        trainee = ClientTrainer(str(client), app_of(simulation, client))
                        puppets[client] = Puppet(connection, trainee, tmp_path / f"{client}.state")
                    await (
                        puppets[client].fetch() if what == "fetch" else getattr(puppets[client], what)(trip)
                    )
                    if number == len(steps) // 2:
                        coordinator.settings = coordinator.settings.model_copy(
                            update={"snapshot_seconds": 1e-9}
                        )
                    elif number == len(steps) // 2 + 1:
                        coordinator.settings = CONFIG.service
                    if number % 5 == 0:  # as if the power failed here
                        folder = tmp_path / f"copy-{number}"
                        await settled(running)  # a copy of files that change is none
                        shutil.copytree(tmp_path / "run", folder)
                        copies.append((folder, Stopped(running.record), coordinator.run_state.state()))
                await asyncio.wait_for(asyncio.shield(coordinator.ended), PATIENCE)
            return coordinator.model_state.aggregator.evaluated_model, comparable(running.record.events)

    async def recovered(folder, record, state):
        async with serving(CONFIG, folder, record, record.last) as running:
            assert running.coordinator.run_state.state() == state
            assert all(ready.done() for ready in running.coordinator._versions._versions.values())
            await running.coordinator._threads.in_model_thread(running.coordinator.model_state.settle)
            return comparable(record.events)

    model, told = asyncio.run(straight())
    assert torch.equal(model, simulation.model)
    assert len(copies) > 6
    assert any(record.last for _, record, _ in copies)
    for copy in copies:
        again = asyncio.run(recovered(*copy))
        assert again == told[: len(again)]


def test_a_snapshot_without_its_journal_is_refused(tmp_path):
    simulation = trace_of(CONFIG)[0]

    async def scene(folder, record, snapshot):
        async with serving(CONFIG, folder, record, snapshot) as running:
            async with two_puppets(running, simulation, ("0", "1")) as puppets:
                await puppets[0].fetch()
            await running.coordinator.recovery.snapshot()
            return running.record

    record = asyncio.run(scene(tmp_path / "one", Memory(), None))
    with pytest.raises(RunError, match="the journal of the run is gone; --accept-loss"):
        asyncio.run(scene(tmp_path / "empty", Memory(), record.snapshots[-1]))
    asyncio.run(scene(tmp_path / "other", Memory(), None))
    with pytest.raises(RunError, match="journal is not the one"):
        asyncio.run(scene(tmp_path / "other", Memory(), record.snapshots[-1]))


class Process:
    """`tardigrad serve` in a process of its own, which can be killed and started again."""

    def __init__(self, commands, folder, config):
        self.commands, self.folder = commands, folder
        (folder / "run.toml").write_text(config.to_toml())
        self.signers = {}
        self.start()

    def start(self):
        self.process = self.commands.start(
            "serve", self.folder / "run.toml", "--out", self.folder / "run", "--keys", self.folder / "keys",
            "--insecure", "--port", 0,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[-1]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def connect(self, name):
        return Connection(self.address, Signer(name, self.signers[name]), None)


def test_bits_are_the_same_after_sigkill(commands, tmp_path):
    """The server is killed in the midst of deliveries; all is delivered again, and the bits are the same."""
    simulation, events, steps = trace_of(CONFIG)
    kills = [len(steps) // 3, 2 * len(steps) // 3]
    (tmp_path / "keys").mkdir()
    names = sorted({client for _, client, _ in steps})
    signers = {str(client): enrolled_key(tmp_path / "keys", str(client)) for client in names}
    config = CONFIG.model_copy(
        update={"service": CONFIG.service.model_copy(update={"snapshot_seconds": 0.2})}
    )
    server = Process(commands, tmp_path, config)
    server.signers = signers

    async def one_step(what, client, trip, puppet):
        async with server.connect(str(client)) as puppet.connection:
            if what == "fetch":
                assert await puppet.fetch() == trip
            else:
                await getattr(puppet, what)(trip)

    async def drive():
        puppets, killed = {}, 0
        for number, (what, client, trip) in enumerate(steps):
            if client not in puppets:
                trainee = ClientTrainer(str(client), app_of(simulation, client))
                puppets[client] = Puppet(None, trainee, tmp_path / f"{client}.state")
            step = what, client, trip, puppets[client]
            if what == "deliver" and kills and number >= kills[0]:
                del kills[0]
                delivery = asyncio.ensure_future(one_step(*step))
                await asyncio.sleep(0.03 + 0.005 * killed)
                server.kill()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await delivery
                server.start()
                killed += 1  # and deliver it again, whether it counted or not
            await one_step(*step)
        return killed

    try:
        assert asyncio.run(asyncio.wait_for(drive(), PATIENCE)) == 2
        assert server.process.wait() == 0
    finally:
        if server.process.poll() is None:
            server.kill()
    assert_simulated(tmp_path / "run", CONFIG, events)
    assert not (tmp_path / "run" / "uploads").exists()
