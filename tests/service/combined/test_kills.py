"""Killed at any moment, full disks, torn pages: what was acknowledged counts, once, and the bits stay.

`make soak` kills more often than the suite does.
"""

import asyncio
import json
import os
import random
import shutil
import subprocess

import grpc
import pytest
import torch
from service_harness import (
    Memory,
    app_of,
    assert_simulated,
    comparable,
    enrolled_key,
    serving,
    settled,
    trace_of,
)

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.serve import serve
from tardigrad.privacy.releases import digest_of
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection, RetryLater
from tardigrad.service.server.endpoint import Endpoint

SOAK = "TARDIGRAD_SOAK" in os.environ
KILLS = 40 if SOAK else 3
"""Of the server, for each kind of run; about half as many again while it recovers."""
CONFIG = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4),
    buffer=td.Buffer(size=3, staleness_bound=2, most_per_client=3),
    stop=td.Stop(trips=120 if SOAK else 30), evaluation=td.Evaluation(every_steps=2),
    delay=td.HalfNormal(give_up=0.1), local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "linger_seconds": 0.1, "snapshot_seconds": 0.05},
)  # fmt: skip
PRIVATE = {
    "kind": "participation",
    "participations": 100,
    "separation": 1,
    "noise_multiplier": 0.5,
    "clip": 0.5,
}
KINDS = {
    "individual uploads and memory": CONFIG,
    "rounds with over-selection and memory": CONFIG.model_copy(
        update={
            "algorithm": td.SCAFFOLD(),
            "pace": td.Synchronous(cohort=3, selected=5),
            "buffer": td.Buffer(most_per_client=3),
        }
    ),
    "sums and memory": CONFIG.model_copy(
        update={"algorithm": td.CA2FL(), "buffer": td.Buffer(size=3, most_per_client=3)}
    ),
    **{
        f"sums, {encoding.kind}": CONFIG.model_copy(
            update={"algorithm": td.FedBuff(staleness="polynomial"), "encoding": encoding}
        )
        for encoding in (td.BFloat16(), td.Grid())
    },
    "sums, encoded both ways": CONFIG.model_copy(
        update={
            "algorithm": td.FedBuff(momentum=td.Approximation()),
            "encoding": td.Int8(error_feedback=True),
            "broadcast": td.DifferenceBroadcast(encoding=td.Int4()),
        }
    ),
    "private, encoded both ways": CONFIG.model_copy(
        update={
            "algorithm": td.FedBuff(),
            "privacy": td.Participation(**PRIVATE),
            "encoding": td.Int8(),
            "broadcast": td.DifferenceBroadcast(encoding=td.Int4()),
        }
    ),
    "private, blt": CONFIG.model_copy(
        update={"algorithm": td.FedBuff(momentum="ema"), "privacy": td.Participation(**PRIVATE)}
    ),
    "private, tree, adaptive clipping": CONFIG.model_copy(
        update={
            "algorithm": td.CA2FL(),
            "privacy": td.Participation(**PRIVATE, noise="tree", adaptive={"quantile": 0.5}),
        }
    ),
}
"""The private ones draw their noise from the system."""


class Servers:
    """A server that is killed and started again."""

    def __init__(self, commands, folder):
        self.commands, self.folder, self.address = commands, folder, None
        self._process, self.kills = None, 0

    def fork(self):
        self._process = self.commands.start(
            "serve", self.folder / "run.toml", "--out", self.folder / "run", "--keys", self.folder / "keys",
            "--insecure", "--port", 0, "--log-level", "warning",
        )  # fmt: skip

    async def start(self):
        self.fork()
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line.startswith("listening on "), line + self._process.stderr.read()
        self.address = line.split()[-1]

    async def over(self):
        said, errors = await asyncio.to_thread(self._process.communicate)
        assert self._process.returncode == 0, errors
        return said

    def kill(self):
        """Kill the server and wait until it has ended: until then it has the locks of its files."""
        self._process.kill()
        self._process.wait()
        self.kills += 1


class NoTask(Exception):
    """The client was told to come again."""


class Survivor:
    """A client that knows only what is on its disk when it has died, and starts again."""

    def __init__(self, name, key, trainee, state, seen=None):
        """`seen`: by version, the digest of what was handed out; shared by all clients."""
        self._signer, self._trainee, self._state = Signer(name, key), trainee, state
        self._seen = {} if seen is None else seen
        self._epochs = {}  # of the trips it was given; it would write them down
        self.die()

    def die(self):
        self._remembering, self._held = ClientMemory(self._state), {}

    async def do(self, address, what, trip):
        async with Connection(address, self._signer, None) as connection:
            if what == "give_up":
                await connection.give_up(trip, self._epochs[trip])
            elif what == "fetch":
                await self._fetch(connection, trip)
            else:
                await self._deliver(connection, trip)

    async def _fetch(self, connection, trip):
        found = await connection.fetch()
        if isinstance(found, RetryLater):
            raise NoTask
        assert found.task.trip == trip
        digest = digest_of(found.task.vectors)
        assert self._seen.setdefault(found.task.version, digest) == digest, "a version was released twice"
        self._held = {trip: found}
        self._epochs[trip] = found.epoch

    async def _deliver(self, connection, trip):
        pending = {finished.trip: finished for finished in self._remembering.pending()}
        if trip not in pending:
            if trip not in self._held:
                await self._fetch(connection, trip)
            pending[trip] = self._trainee.train(self._held[trip], self._remembering.memory)
            self._remembering.keep(pending[trip])
        answer = await connection.deliver(pending[trip])
        if answer.accepted:
            self._remembering.commit(pending[trip])
        self._remembering.drop(trip)


PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""The server is gone or slow, or still busy with what the client sent before it died."""


async def ended(step):
    """Whether the client has heard that it is done."""
    try:
        await step
    except (asyncio.CancelledError, NoTask):
        return False
    except grpc.aio.AioRpcError as error:
        if error.code() not in PASSING:
            raise
        await asyncio.sleep(0.1)
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_same_after_kills_at_random_moments(commands, tmp_path, kind):
    config = KINDS[kind]
    simulation, events, steps = trace_of(config)
    chance = random.Random(f"7 {kind}")
    moments = set(chance.sample(range(len(steps) - 1), KILLS))
    (tmp_path / "keys").mkdir()
    (tmp_path / "run.toml").write_text(config.to_toml())
    survivors, seen = {}, {}
    for client in sorted({client for _, client, _ in steps}):
        key = enrolled_key(tmp_path / "keys", str(client))
        trainee = ClientTrainer(str(client), app_of(simulation, client))
        survivors[client] = Survivor(str(client), key, trainee, tmp_path / f"{client}.state", seen)

    async def drive(servers):
        await servers.start()
        for number, (what, client, trip) in enumerate(steps):
            survivor, done = survivors[client], False
            if number in moments:
                step = asyncio.ensure_future(survivor.do(servers.address, what, trip))
                await asyncio.sleep(chance.uniform(0.0, 0.06))
                servers.kill()
                if chance.random() < 0.5:  # again, while it recovers
                    servers.fork()
                    await asyncio.sleep(chance.uniform(0.0, 0.15))
                    servers.kill()
                done = await ended(step)
                await servers.start()
            last = number == len(steps) - 1  # after which the server ends and answers nobody
            if not done and not last and chance.random() < 0.2:  # the client dies in the midst of it
                step = asyncio.ensure_future(survivor.do(servers.address, what, trip))
                await asyncio.sleep(chance.uniform(0.0, 0.03))
                step.cancel()
                done = await ended(step)
                survivor.die()
            while not done:
                done = await ended(asyncio.ensure_future(survivor.do(servers.address, what, trip)))
        return await servers.over()

    servers = Servers(commands, tmp_path)
    try:
        assert "the run is over (trips)" in asyncio.run(asyncio.wait_for(drive(servers), 600))
        assert servers.kills >= KILLS
    finally:
        servers.kill()
    if config.privacy is None:
        assert_simulated(tmp_path / "run", config, events)
    else:
        assert_private_history(tmp_path / "run", events, seen)


def assert_private_history(out, events, seen):
    """The uploads are those of the simulation, and each version was made once, with one noise."""
    told = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]

    def uploads(events):
        return comparable([event for event in events if event["event"] == "upload"])

    assert uploads(told) == uploads(events)
    released = [line.split() for line in (out / "releases.log").read_text().splitlines()]
    history = {int(words[0]): words[1] for words in released if words[0].isdigit()}
    assert len(history) == sum(words[0].isdigit() for words in released), "a version is recorded once"
    assert history.keys() == set(range(1, len(history) + 1))
    assert {version: digest for version, digest in seen.items() if version} == {
        version: history[version] for version in seen if version
    }
    assert len(seen) > 5
    assert json.loads((out / "summary.json").read_text())["epsilon"] > 0
    assert not (out / "noise.keys").exists()


def without_snapshots(config):
    service = config.service.model_copy(update={"snapshot_seconds": 1e6})
    return config.model_copy(update={"service": service})


async def some_steps(running, simulation, steps, after):
    """Do these steps; after each, tell that it is done."""
    for number, (what, client, trip) in enumerate(steps):
        name = str(client)
        trainee = ClientTrainer(name, app_of(simulation, client))
        survivor = Survivor(name, running.signer(name)._key, trainee, running.keys.parent / f"{name}.state")
        survivor._epochs = dict(running.coordinator.run_state.epochs)
        await survivor.do(running.address, what, trip)
        after(number)


def test_a_torn_end_of_the_journal_is_as_if_it_had_not_been_written(tmp_path):
    simulation, _, steps = trace_of(CONFIG)
    config, states, lengths = without_snapshots(CONFIG), [], []

    async def straight():
        async with serving(config, tmp_path / "run") as running:
            wal = tmp_path / "run" / "journal.sqlite-wal"
            states.append(running.coordinator.run_state.state())

            def after(_):
                states.append(running.coordinator.run_state.state())
                lengths.append(wal.stat().st_size)

            await some_steps(running, simulation, steps[:16], after)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")

    async def recovered(folder):
        async with serving(config, folder) as running:
            return running.coordinator.run_state.state()

    asyncio.run(straight())
    for cut in (1, 100, 4000, 4200, lengths[-1] - lengths[-3] + 7):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "copy", folder)
        wal = folder / "journal.sqlite-wal"
        assert wal.stat().st_size == lengths[-1]
        os.truncate(wal, lengths[-1] - cut)
        state = asyncio.run(recovered(folder))
        assert state in states[:-1]
        if cut == 1:
            assert state == states[-2]


def test_an_upload_that_the_disk_has_changed_is_noticed(tmp_path):
    simulation, _, steps = trace_of(CONFIG)
    config = without_snapshots(CONFIG)

    async def straight():
        async with serving(config, tmp_path / "run") as running:
            await some_steps(running, simulation, steps[:10], lambda _: None)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")

    async def recovered():
        async with serving(config, tmp_path / "copy"):
            pass

    asyncio.run(straight())
    file = min((tmp_path / "copy" / "uploads").iterdir())
    body = bytearray(file.read_bytes())
    body[17] ^= 1
    file.write_bytes(body)
    with pytest.raises(RunError, match="is not what was acknowledged"):
        asyncio.run(recovered())


async def is_refused(steps):
    """Whether the client was told to come again."""
    try:
        await steps
    except NoTask:
        return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return True
    return False


def test_run_survives_a_full_file_system(small_disk, tmp_path):
    simulation, _, steps = trace_of(CONFIG)
    config = without_snapshots(CONFIG)
    filler = small_disk / "filler"
    done, refused = [], []

    async def straight():
        async with serving(config, small_disk, keys=tmp_path / "keys") as running:
            state = running.coordinator.run_state.state
            for number, step in enumerate(steps[:30]):
                if number % 5 == 4:
                    before = state()
                    left = os.statvfs(small_disk)
                    filler.write_bytes(bytes((left.f_bavail - number % 3) * left.f_bsize))
                    if await is_refused(some_steps(running, simulation, [step], done.append)):
                        assert state() == before
                        refused.append(number)
                    filler.unlink()
                    if refused[-1:] != [number]:
                        continue
                await some_steps(running, simulation, [step], done.append)
            await settled(running)
            shutil.copytree(small_disk, tmp_path / "copy")
            return state(), running.coordinator.model_state.aggregator.evaluated_model.clone()

    async def recovered():
        async with serving(config, tmp_path / "copy", Memory(), keys=tmp_path / "keys") as running:
            return (
                running.coordinator.run_state.state(),
                running.coordinator.model_state.aggregator.evaluated_model.clone(),
            )

    (state, model), (again, same) = asyncio.run(straight()), asyncio.run(recovered())
    assert len(done) == 30
    assert len(refused) > 2
    assert state == again
    assert torch.equal(model, same)


def test_file_system_that_becomes_read_only(tmp_path):
    """Uploads are refused and clients told to come again; nothing counts that could not be written."""
    simulation, _, steps = trace_of(CONFIG)
    config = without_snapshots(CONFIG)
    uploads = tmp_path / "run" / "uploads"

    def mount(*words):
        return subprocess.run(["mount", *words, str(uploads)], capture_output=True).returncode == 0

    async def scene():
        async with serving(config, tmp_path / "run") as running:
            if shutil.which("mount") is None or not mount("--bind", str(uploads)):
                pytest.skip("file systems can be mounted by root only")
            state = running.coordinator.run_state.state
            done, refused = [], 0
            try:
                for step in steps[:20]:
                    if step[0] == "deliver":
                        before = state()
                        assert mount("-o", "remount,ro,bind")
                        refused += await is_refused(some_steps(running, simulation, [step], done.append))
                        assert state() == before
                        assert mount("-o", "remount,rw,bind")
                    await some_steps(running, simulation, [step], done.append)
            finally:
                subprocess.run(["umount", "-l", str(uploads)], check=True)
            assert len(done) == 20
            return refused

    assert asyncio.run(scene()) == sum(step[0] == "deliver" for step in steps[:20]) > 5


def test_run_on_a_read_only_file_system_is_refused(small_disk, tmp_path):
    folder = small_disk / "run"

    def serve_once():
        enrolled_key(tmp_path / "keys", "ann") if not (tmp_path / "keys").exists() else None
        serve(CONFIG, out=folder, endpoint=Endpoint("127.0.0.1", 0, tmp_path / "keys", insecure=True))

    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(td.ConfigError, match=r"cannot be (made|used|written)"):
        serve_once()
