"""A server and its clients in one process, over loopback; and the trace of a simulated run."""

import asyncio
import contextlib
import json
import socket
import time

import grpc
import torch

import tardigrad as td
from tardigrad.core.event_log import to_record
from tardigrad.core.outcomes import Accepted, GivenUp, Rejected, Ticket
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.service.access.admins import Admins
from tardigrad.service.access.enrolment import ADMINS, LIST, Enrolled, make_key, public_text
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.access.signed_requests import RequestVerifier, Signer
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection, RetryLater
from tardigrad.service.client.operator_connection import OperatorConnection
from tardigrad.service.server.admin_rpc import AdminServicer, SteeredRun, admin_handlers
from tardigrad.service.server.clock import SYSTEM, Clock
from tardigrad.service.server.listener import Server
from tardigrad.service.server.rpc import Servicer
from tardigrad.service.server.run_plan import coordinate, facts_of
from tardigrad.service.store.audit_log import AUDIT, AuditLog
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.sqlite import SqliteStore

torch.set_num_threads(1)

PATIENCE = 300.0
"""Seconds that a test waits for what must come: many, because a busy machine may be slow."""


class FakeClock(Clock):
    """Clocks that stand still until a test moves them."""

    def __init__(self):
        self._wall, self._monotonic = time.time(), 500.0

    def wall(self):
        return self._wall

    def monotonic(self):
        return self._monotonic

    def advance(self, seconds):
        """Time passes."""
        self._wall += seconds
        self._monotonic += seconds

    def step(self, seconds):
        """Somebody sets the wall clock."""
        self._wall += seconds


class Memory:
    """A record that is kept in memory."""

    def __init__(self):
        self.events, self.snapshots = [], []

    def record(self, events):
        self.events += [json.loads(json.dumps(to_record(event))) for event in events]

    def snapshot(self, tensors, document):
        copied = {name: tensor.clone() for name, tensor in tensors.items()}
        document = document | {"events": len(self.events)}
        self.snapshots.append((copied, json.loads(json.dumps(document))))

    def unrecovered(self):
        return []

    def recovered(self):
        pass


class Running:
    """A server that runs."""

    def __init__(self, coordinator, server, record, port, keys, run, signers):
        self.coordinator, self.server, self.record, self.port = coordinator, server, record, port
        self.keys, self.run, self.signers = keys, run, signers
        self.address = f"127.0.0.1:{port}"

    @property
    def refusals(self):
        return self.server.servicer.refusals.counts

    def signer(self, name, clock=SYSTEM):
        if name not in self.signers:
            self.signers[name] = enrolled_key(self.keys, name)
        return Signer(name, self.signers[name], clock)

    @contextlib.asynccontextmanager
    async def operator(self, name="root"):
        """The connection of an operator, who is enrolled if it is not known yet."""
        if name not in self.signers:
            self.signers[name] = enrolled_key(self.keys, name, ADMINS)
        connection = OperatorConnection(self.address, self.signer(name), None)
        try:
            await connection.enter()
            yield connection
        finally:
            await connection.close()

    def connect(self, name, clock=SYSTEM):
        return Connection(self.address, self.signer(name, clock), None)


def enrolled_key(keys, name, on=LIST):
    """A key for this client, or operator, on the server's list."""
    key = make_key(keys / f"{name}.key")
    add_clients(keys / on, {name: public_text(key)})
    return key


async def failed(call):
    """Return the status with which a call fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError("the call succeeded")


@contextlib.asynccontextmanager
async def serving(
    config,
    folder,
    record=None,
    snapshot=None,
    signers=None,
    durable=True,
    model=None,
    keys=None,
    noise=None,
    accept_loss=False,
    clock=SYSTEM,
    layers=(),
    store=None,
    identity=None,
):
    """The server of a config. Without a `store` it opens one in the folder, and closes it at the end.
    `identity`: of the server of a secure run."""
    keys = folder / "keys" if keys is None else keys
    keys.mkdir(exist_ok=True, parents=True)
    (keys / LIST).touch()
    noise = NoiseKeys() if noise is None else noise
    run = build_server(config, model, Secrets(noise), identity=identity)
    run.plan.aggregator.layers += tuple(layers)
    record = record if record is not None else Memory()
    if store is None:
        opened = contextlib.closing(SqliteStore(folder) if durable else MemoryStore())
    else:
        opened = contextlib.nullcontext(store)
    with opened as store:
        coordinator = coordinate(run.plan, store, record, noise.forget, clock, AuditLog(folder / AUDIT))
        if "idle_seconds" not in coordinator.settings.model_fields_set:
            coordinator.settings = coordinator.settings.model_copy(update={"idle_seconds": PATIENCE})
        enrolled = Enrolled(keys / LIST)
        gate = RequestVerifier(enrolled, clock)
        server = Server(Servicer(coordinator, gate, facts_of(run.plan)))
        steered = SteeredRun("", coordinator, server.servicer, folder)
        server.add(admin_handlers(AdminServicer({"": steered}, Admins(enrolled))))
        await coordinator.start(None if snapshot is None else (dict(snapshot[0]), snapshot[1]), accept_loss)
        port = await server.start("127.0.0.1:0", None)
        try:
            signers = signers if signers is not None else {}
            yield Running(coordinator, server, record, port, keys, run, signers)
        finally:
            coordinator.dismiss()
            await server.stop(1)
            await coordinator.stop()


def app_of(simulation, client):
    """The client of a simulated federation as a real one: its own examples, a module of its own."""
    federation = simulation.federation
    config = simulation.config
    module = config.model.build_with(federation.vectors, federation.shape, federation.classes)
    return Client(
        module, federation.clients.load(client), head=federation.head, transform=federation.transform
    )


def trace_of(config, **own):
    """A simulated run and what happened in it: check-ins, deliveries and givings up, in order.

    `own`: the model, clients, test set and head, if they are not those of the config.
    """
    simulation = build(config, **own)
    events = [to_record(event) for events in simulation.engine.run() for event in events]
    end = sum(1 for event in events if event["event"] in ("upload", "give_up"))
    planner, steps = build(config, **own).planner, []
    while end:
        for item in planner.advance():
            if isinstance(item, Ticket):
                steps.append(("fetch", item.client, item.trip))
            elif isinstance(item, GivenUp):
                steps.append(("give_up", item.ticket.client, item.ticket.trip))
                end -= 1
            elif isinstance(item, Accepted | Rejected):
                steps.append(("deliver", item.client, item.trip))
                end -= 1
    return simulation, events, steps


async def fetched(connection, held=()):
    """Fetch a task. A server that has too much to do in time asks a client to come again."""
    async with asyncio.timeout(PATIENCE):
        while isinstance(found := await connection.fetch(held), RetryLater):
            pass
    return found


async def settled(running):
    """Wait until all that clients were answered has come to the model, the evaluations and the disk."""
    coordinator, threads = running.coordinator, running.coordinator._threads
    if coordinator._snapshotting is not None:
        await asyncio.wait({coordinator._snapshotting})
    await threads.in_model_thread(coordinator.model_state.settle)
    await asyncio.wrap_future(threads.files.submit(lambda: None))


def with_limits(running, **changes):
    """Change limits of a server that runs."""
    coordinator = running.coordinator
    coordinator.settings = coordinator.settings.model_copy(update=changes)


@contextlib.contextmanager
def closed_port():
    """The address of a port on which nobody listens, and which nobody else can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


class Puppet:
    """A client that does what it is told, one thing at a time."""

    def __init__(self, connection, trainee, state):
        self.connection, self.trainee = connection, trainee
        self.remembering = ClientMemory(state)
        self.holding = {}
        self.finished = {}

    async def fetch(self):
        found = await fetched(self.connection, self.holding)
        self.holding[found.task.trip] = found
        return found.task.trip

    def train(self, assignment):
        return self.trainee.train(assignment, self.remembering.memory)

    async def deliver(self, trip):
        """Delivered again, it is the very same upload."""
        if trip not in self.finished:
            self.finished[trip] = self.train(self.holding.pop(trip))
        finished = self.finished[trip]
        answer = await self.send(finished)
        if answer.accepted and finished.memory:
            self.remembering.commit(finished)
        return answer

    async def send(self, finished):
        return await self.connection.deliver(finished)

    async def give_up(self, trip):
        return await self.connection.give_up(trip, self.holding.pop(trip).epoch)


@contextlib.asynccontextmanager
async def two_puppets(running, simulation, names):
    """Clients 0 and 1 of a simulation, by these names."""
    async with running.connect(names[0]) as one, running.connect(names[1]) as other:
        yield [
            Puppet(
                connection, ClientTrainer(name, app_of(simulation, client)), running.keys / f"{name}.state"
            )
            for client, (name, connection) in enumerate(zip(names, (one, other), strict=True))
        ]


async def replay(running, simulation, steps, puppets=None, app=app_of, puppet_kind=Puppet):
    """Let clients do these steps in this very order. `app`: makes the client of a simulated one."""
    puppets = {} if puppets is None else puppets
    async with contextlib.AsyncExitStack() as stack:
        for what, client, trip in steps:
            if client not in puppets:
                connection = await stack.enter_async_context(running.connect(str(client)))
                trainee = ClientTrainer(str(client), app(simulation, client))
                puppets[client] = puppet_kind(connection, trainee, running.keys / f"{client}.state")
            puppet = puppets[client]
            if what == "fetch":
                assert await puppet.fetch() == trip
            else:
                await getattr(puppet, what)(trip)
        return await asyncio.wait_for(asyncio.shield(running.coordinator.ended), PATIENCE)


def comparable(events):
    """Events without what depends on the clock, and with clients' names as the server has them."""
    cut = ("time", "start_time")
    rows = []
    for event in events:
        row = {name: value for name, value in event.items() if name not in cut}
        if "client" in row:
            row["client"] = str(row["client"])
        rows.append(row)
    return json.loads(json.dumps(rows))


def assert_simulated(out, config, events):
    """A finished run of a server has the model and the events of the simulated one, `events`. (A server that
    was killed has sent some bytes more than once.)"""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model_sha256"] == td.run(config).model_sha256
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    ours, theirs = comparable(lines[1:]), comparable(events)
    for event in [*ours, *theirs]:
        event.pop("bytes", None)
    assert ours == theirs


def assert_served_as_simulated(config, folder):
    """A server on which clients do what they do in the simulation has its model, its events and its bytes."""
    simulation, events, steps = trace_of(config)

    async def served():
        async with serving(config, folder) as running:
            assert await replay(running, simulation, steps) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    assert comparable(running.record.events) == comparable(events)
