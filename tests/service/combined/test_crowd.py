"""Many clients at once, most of them slow: everybody gets a task and is heard."""

import asyncio
import os

from service_harness import app_of, serving

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import LIST, make_key, public_text
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import RetryLater

CLIENTS = 1000 if "TARDIGRAD_SOAK" in os.environ else 100
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=CLIENTS)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=CLIENTS), buffer=td.Buffer(size=10), stop=td.Stop(trips=2 * CLIENTS),
    service={"requests_per_second": 1000},
)  # fmt: skip


def test_a_crowd_of_slow_clients_is_served(tmp_path):
    simulation = build(CONFIG)
    keys = tmp_path / "keys"
    keys.mkdir()
    names = [f"client{number}" for number in range(CLIENTS)]
    secrets = {name: make_key(keys / f"{name}.key") for name in names}
    (keys / LIST).write_text("".join(f"{name} {public_text(key)}\n" for name, key in secrets.items()))
    trainee = ClientTrainer("0", app_of(simulation, 0))
    everybody = asyncio.Event()
    trips, waiting = [], set(names)

    async def slow(running, name):
        async with running.connect(name) as connection:
            found = await connection.fetch()
            while isinstance(found, RetryLater):
                found = await connection.fetch()
            waiting.discard(name)
            if not waiting:
                everybody.set()
            await everybody.wait()  # all of them are connected, and at work
            answer = await connection.deliver(trainee.train(found, {}))
            trips.append(found.task.trip)
            return answer.accepted

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            running.signers |= secrets
            accepted = await asyncio.gather(*(slow(running, name) for name in names))
            assert all(accepted)
            assert sorted(trips) == list(range(CLIENTS))
            assert running.refusals == {}
            assert running.coordinator.run_state.trips == CLIENTS
            assert running.coordinator.run_state.book.version == CLIENTS // 10
            while running.server.servicer.reception.memory.used:  # released when the last upload was added
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scene(), 300))
