"""A server is killed while operators act: what was acknowledged holds, and the audit log is whole."""

import asyncio
import contextlib
import os
import random
import shutil

import grpc
import pytest
from service_harness import PATIENCE, Memory, app_of, enrolled_key, serving
from test_kills import Servers

import tardigrad as td
from tardigrad.errors import RunError, TardigradError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import ADMINS
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection, RetryLater
from tardigrad.service.client.operator_connection import entered
from tardigrad.service.client.received_export import receive_export
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.store.audit_verification import verified

KILLS = 200 if "TARDIGRAD_SOAK" in os.environ else 20
SEED = 20
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=1000),
    local=td.Local(steps=2, lr=0.1),
    service={"requests_per_second": 10_000, "poll_seconds": 0.05, "snapshot_seconds": 0.05},
)  # fmt: skip


def state_of(lines):
    """Whether the run is paused, who is ejected, and the concurrency, by the acts in the audit log."""
    paused, ejected, concurrency = False, set(), 2.0
    for line in lines:
        match line["act"]:
            case "pause" | "resume":
                paused = line["act"] == "pause"
            case "eject":
                ejected.add(line["arguments"]["client"])
            case "admit":
                ejected.remove(line["arguments"]["client"])
            case "limits":
                concurrency = line["arguments"]["concurrency"]
    return paused, ejected, concurrency


class Operator:
    """An operator who notes what the server has acknowledged."""

    def __init__(self, key, folder, chance):
        self._signer, self._folder, self._chance = Signer("root", key), folder, chance
        self.acknowledged, self.exports = [], 0

    async def act(self, address):
        """Do something, and note the number of its line in the audit log."""
        chance = self._chance
        act = chance.choice(("pause", "resume", "eject", "admit", "limits", "export", "export"))
        async with entered(address, self._signer, None) as connection:
            if act == "export":
                self.exports += 1
                out = self._folder / f"export-{self.exports}"
                header = await receive_export(connection.export(), out)
                assert (out / "export.json").exists()
                self.acknowledged.append((header.audit, "export"))
                return
            given = {"client": chance.choice("01")} if act in ("eject", "admit") else {}
            if act == "limits":
                given = {"limits": {"concurrency": chance.randrange(1, 9)}}
            steered = await connection.steer(act, **given)
            if steered.changed:
                self.acknowledged.append((steered.audit, act))

    async def state(self, address):
        async with entered(address, self._signer, None) as connection:
            (listed,) = connection.runs
            steered = await connection.steer("limits")
            return listed.state == "paused", steered.limits["concurrency"]


async def is_ejected(address, client, key):
    """Whether the server refuses this client."""
    try:
        async with Connection(address, Signer(client, key), None):
            return False
    except grpc.aio.AioRpcError as error:
        if dict(error.trailing_metadata())["tardigrad-why"] != Cause.EJECTED:
            raise
        return True


def test_acknowledged_acts_survive_kills_and_the_audit_log_stays_whole(commands, tmp_path):
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    (tmp_path / "keys").mkdir()
    (tmp_path / "run.toml").write_text(CONFIG.to_toml())
    clients = {name: enrolled_key(tmp_path / "keys", name) for name in "01"}
    key, trainer = enrolled_key(tmp_path / "keys", "2"), ClientTrainer("2", app_of(build(CONFIG), 2))
    operator = Operator(enrolled_key(tmp_path / "keys", "root", ADMINS), tmp_path, chance)
    audit = tmp_path / "run" / "audit.jsonl"

    async def acting(address, kills):
        while servers.kills == kills:
            with contextlib.suppress(RunError):  # too many requests
                await operator.act(address)

    async def training(address):
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with Connection(address, Signer("2", key), None) as connection:
                while True:
                    found = await connection.fetch()
                    if not isinstance(found, RetryLater):
                        await connection.deliver(trainer.train(found, {}))

    async def drive(servers):
        await servers.start()
        for _ in range(KILLS):
            work = asyncio.ensure_future(acting(servers.address, servers.kills))
            client = asyncio.ensure_future(training(servers.address))
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            servers.kill()
            work.cancel()
            for result in await asyncio.gather(work, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError | TardigradError), result
            client.cancel()
            await asyncio.gather(client, return_exceptions=True)
            await servers.start()
            lines = verified(audit) if audit.exists() else []
            paused, ejected, concurrency = state_of(lines)
            for number, act in operator.acknowledged:
                assert lines[number - 1]["act"] == act
            assert await operator.state(servers.address) == (paused, concurrency)
            for name, key in clients.items():
                assert await is_ejected(servers.address, name, key) == (name in ejected)
        servers.kill()

    servers = Servers(commands, tmp_path)
    try:
        asyncio.run(asyncio.wait_for(drive(servers), 2 * PATIENCE))
    finally:
        servers.kill()
    assert servers.kills >= KILLS
    acts = {act for _, act in operator.acknowledged}
    assert {"pause", "eject", "export"} <= acts
    assert len(operator.acknowledged) > KILLS
    assert (tmp_path / "run" / "snapshot.safetensors").exists(), "acts were in snapshots, too"


@pytest.mark.parametrize("cut", ["no line", "half a line"])
def test_line_that_a_kill_has_prevented_is_written_once_at_recovery(tmp_path, cut):
    """The journal has the act, and the audit log has nothing of it, or a part."""

    async def straight():
        async with serving(CONFIG, tmp_path / "run") as running, running.operator() as root:
            await root.steer("pause")
            await root.steer("resume")
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    record = Memory()

    async def again():
        snapshot = record.snapshots[-1] if record.snapshots else None
        async with serving(CONFIG, tmp_path / "killed", record, snapshot):
            pass

    asyncio.run(asyncio.wait_for(straight(), PATIENCE))
    file = tmp_path / "killed" / "audit.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(b"\n") + (1 if cut == "no line" else 40)])
    for _ in range(2):
        asyncio.run(asyncio.wait_for(again(), PATIENCE))
        assert file.read_bytes() == whole
