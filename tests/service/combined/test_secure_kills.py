"""Server, helper and clients of a secure run with noise are killed at random moments, alone and together.

`make soak` kills more often than the suite does.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sqlite3

import pytest
from helper_harness import prepared
from service_harness import app_of, enrolled_key, trace_of
from test_kills import SOAK, NoTask, Servers, Survivor, comparable, ended

import tardigrad as td
from tardigrad.experiments.runs.server_assembly import assemble_server
from tardigrad.secure.helper_database import FILE
from tardigrad.secure.helper_refusals import RESEAL
from tardigrad.secure.policy import read_policy
from tardigrad.secure.receipts import read_receipt
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.access.identity import own_identity
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.secure_trips import secure_trips

KILLS = 60 if SOAK else 6
"""Of server, helper and clients together, at least."""
CONFIG = td.Config(
    algorithm=td.FedBuff(momentum="ema"), data=td.Digits(partition=td.IID(clients=6)),
    model=td.MLP(hidden=(8,)), pace=td.Asynchronous(concurrency=4),
    buffer=td.Buffer(size=3, once_per_client=True), secure=td.Secure(least_clients=2),
    stop=td.Stop(trips=120 if SOAK else 24),
    privacy=td.Participation(participations=100, separation=1, noise_multiplier=0.5, clip=0.5),
    evaluation=td.Evaluation(every_steps=2), local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "linger_seconds": 0.1, "snapshot_seconds": 0.05},
)  # fmt: skip


class SecureSurvivor(Survivor):
    """A client of a secure run that knows only what is on its disk when it has died."""

    async def do(self, address, what, trip):
        async with Connection(address, self._signer, None) as connection:
            guardrails = Guardrails(helpers=read_policy(connection.joined.policy).helpers)
            self._secure = secure_trips(connection.joined, guardrails, self._signer.client, self._state)
            await (self._fetch if what == "fetch" else self._deliver)(connection, trip)

    async def _fetch(self, connection, trip):
        await super()._fetch(connection, trip)
        self._secure.check_task(self._held[trip])

    async def _deliver(self, connection, trip):
        pending = {finished.trip: finished for finished in self._remembering.pending()}
        if trip not in pending:
            if trip not in self._held:
                await self._fetch(connection, trip)
            trained = self._trainee.train(self._held[trip], self._remembering.memory)
            pending[trip] = self._secure.hidden(trained)
            self._remembering.keep(pending[trip])
        keys = await connection.offered_keys()
        answer = await connection.deliver(pending[trip], self._secure.envelopes(pending[trip], keys))
        if answer.reason == RESEAL:
            raise NoTask
        if answer.accepted:
            self._remembering.commit(pending[trip])
        self._remembering.drop(trip)


class Helpers(Servers):
    """A helper that is killed and started again, on the same port."""

    def __init__(self, commands, folder, server):
        super().__init__(commands, folder)
        self._server, self.port = server, 0

    def fork(self):
        self._process = self.commands.start(
            "helper", "--out", self.folder / "helper", "--keys", self.folder / "helper-keys", "--insecure",
            "--server", self._server, "--port", self.port,
        )  # fmt: skip

    async def start(self):
        self.fork()
        while not (line := await asyncio.to_thread(self._process.stdout.readline)).startswith("listening on"):
            assert line, self._process.stderr.read()
        self.port = int(line.rpartition(":")[2])


def test_history_is_one_chain_after_kills_of_server_helper_and_clients(commands, tmp_path):
    simulation, events, steps = trace_of(CONFIG)
    chance = random.Random(11)
    # drawn before anything runs, so that the number of kills does not depend on how fast the machine is;
    # after its last step the server ends and answers nobody
    moments = {
        number: chance.choice([["server"], ["helper"], ["server", "helper"]])
        for number in chance.sample(range(len(steps) - 1), KILLS * 2 // 3)
    }
    deaths = {number for number in range(len(steps) - 1) if chance.random() < 0.2}
    assert sum(map(len, moments.values())) + len(deaths) >= KILLS
    (tmp_path / "keys").mkdir()
    survivors, seen, clients = {}, {}, {}
    for client in sorted({client for _, client, _ in steps}):
        clients[str(client)] = enrolled_key(tmp_path / "keys", str(client))
        trainee = ClientTrainer(str(client), app_of(simulation, client))
        survivors[client] = SecureSurvivor(
            str(client), clients[str(client)], trainee, tmp_path / f"{client}.state", seen
        )
    identity, server = prepared(tmp_path, clients), public_text(own_identity(tmp_path / "keys"))
    servers, helpers = Servers(commands, tmp_path), Helpers(commands, tmp_path, server)

    async def drive():
        await helpers.start()
        address = {"address": f"127.0.0.1:{helpers.port}", "identity": identity}
        secure = td.Secure(least_clients=2, helpers=[address])
        config = CONFIG.model_copy(update={"secure": secure})
        (tmp_path / "run.toml").write_text(config.to_toml())
        await servers.start()
        for number, (what, client, trip) in enumerate(steps):
            survivor, done = survivors[client], False
            if number in moments:
                step = asyncio.ensure_future(survivor.do(servers.address, what, trip))
                killed = [{"server": servers, "helper": helpers}[name] for name in moments[number]]
                for one in killed:
                    await asyncio.sleep(chance.uniform(0.0, 0.06))
                    one.kill()
                if helpers not in killed:
                    done = await ended(step)
                for one in chance.sample(killed, len(killed)):
                    await one.start()
                done = done or await ended(step)
            if number in deaths:  # the client dies in the midst of it, or after it
                if not done:
                    step = asyncio.ensure_future(survivor.do(servers.address, what, trip))
                    await asyncio.sleep(chance.uniform(0.0, 0.03))
                    step.cancel()
                    done = await ended(step)
                survivor.die()
            while not done:
                done = await ended(asyncio.ensure_future(survivor.do(servers.address, what, trip)))
        return config, await servers.over()

    try:
        config, said = asyncio.run(asyncio.wait_for(drive(), 900))
    finally:
        servers.kill()
        helpers.kill()
    assert "the run is over (trips)" in said
    assert servers.kills + helpers.kills - 2 == sum(map(len, moments.values()))
    assert_one_history(tmp_path, config, events, seen)


def assert_one_history(folder, config, events, seen):
    """The uploads are those of the simulation, each sum was released once, and the receipts are one chain."""
    out = folder / "run"
    told = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]

    def of(kind, events):
        return comparable([event for event in events if event["event"] == kind])

    assert of("upload", told) == of("upload", events)
    steps = len(of("step", told))
    released = [line.split() for line in (folder / "helper" / "releases.log").read_text().splitlines()]
    numbers = [int(words[0]) for words in released if words[0].isdigit()]
    assert numbers == [*range(1, steps + 1)], "each batch is decided once"
    assert len(seen) > 5
    with contextlib.closing(sqlite3.connect(folder / "helper" / FILE)) as database:
        rows = database.execute("SELECT receipt FROM receipts ORDER BY version").fetchall()
    receipts = [read_receipt(row[0]) for row in rows]
    assert len(receipts) == steps + 1
    for before, after in itertools.pairwise(receipts):
        assert after.follows(before)
    assert {one.version: one.digest for one in receipts} | seen == {
        one.version: one.digest for one in receipts
    }
    guarantee = assemble_server(config).guarantee
    epsilon = json.loads((out / "summary.json").read_text())["epsilon"]
    assert epsilon == pytest.approx(guarantee.epsilon(steps))
