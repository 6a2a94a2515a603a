"""A secure run in one process, over loopback: a server, real helpers, and clients that follow a script."""

import asyncio
import contextlib

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import running_helper
from service_harness import PATIENCE, Memory, Puppet, app_of, serving

from tardigrad.secure.helper_refusals import RESEAL
from tardigrad.secure.policy import read_policy
from tardigrad.service.access.enrolment import LIST, make_key, public_text
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.secure_trips import secure_trips
from tardigrad.service.server.clock import SYSTEM


class SecurePuppet(Puppet):
    """A client of a secure run that does what it is told. It checks what every client checks."""

    def __init__(self, client, connection, trainee, state):
        super().__init__(connection, trainee, state)
        guardrails = Guardrails(helpers=read_policy(connection.joined.policy).helpers)
        self.secure = secure_trips(connection.joined, guardrails, client, state)
        self.plain = {}
        """By trip, the uploads before they were masked."""
        self.patient = False
        """Whether it comes again when the server asks for that, which has not greeted the helpers yet."""

    def train(self, assignment):
        self.secure.check_task(assignment)
        trip = assignment.task.trip
        self.plain[trip] = super().train(assignment)
        return self.secure.hidden(self.plain[trip])

    async def send(self, finished):
        """Send an upload; seal it again if a helper has erased the key."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    keys = await self.connection.offered_keys()
                    answer = await self.connection.deliver(finished, self.secure.envelopes(finished, keys))
                except grpc.aio.AioRpcError as error:
                    if not self.patient or error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.01)
                    continue
                if answer.reason != RESEAL:
                    return answer


async def unless_over(running, doing):
    """Return what a client gets; raise the error of the run if it fails meanwhile."""
    doing, ended = asyncio.ensure_future(doing), running.coordinator.ended
    await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not doing.done() and ended.exception() is not None:
        doing.cancel()
        ended.result()
    return await doing


class SecureFederation:
    """The folders, identities and keys of one secure run, whose parts can be started and stopped.

    The clients are those of a simulation. They are enrolled with the server and with all helpers, and what
    they hold outlives the server's process.
    """

    def __init__(self, folder, config, simulation, clients, helpers=1):
        self.folder, self.config, self.simulation = folder, config, simulation
        self.server = Ed25519PrivateKey.generate()
        self.record, self.store = Memory(), folder / "run"
        keys = self.store / "keys"
        keys.mkdir(parents=True)
        self.signers = {str(name): make_key(keys / f"{name}.key") for name in clients}
        add_clients(keys / LIST, {name: public_text(key) for name, key in self.signers.items()})
        self.ports = [0] * helpers
        self.identities = [None] * helpers
        self.puppets, self.clock = {}, SYSTEM
        self.done = 0
        """Steps of traces that clients have done."""

    @contextlib.asynccontextmanager
    async def helper(self, number=0, **options):
        """Run one of the helpers. Started again, it listens on the same port."""
        folder = self.folder / f"helper-{number}"
        folder.mkdir(exist_ok=True)
        port = self.ports[number]
        async with running_helper(folder, self.server, self.signers, port, **options) as running:
            self.ports[number], self.identities[number] = running.port, running.address
            yield running

    @contextlib.asynccontextmanager
    async def helpers(self, **options):
        """Run all helpers."""
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(self.helper(number, **options))
                for number in range(len(self.ports))
            ]

    @contextlib.asynccontextmanager
    async def serving(self, snapshot="last", folder=None, **options):
        """Run the server, from its last snapshot. The helpers have been there before."""
        secure = self.config.secure.model_copy(update={"helpers": tuple(self.identities)})
        config = self.config.model_copy(update={"secure": secure})
        if snapshot == "last":
            snapshot = self.record.snapshots[-1] if self.record.snapshots else None
            if snapshot is not None:
                del self.record.events[snapshot[1]["events"] :]
        async with serving(
            config, folder or self.store, self.record, snapshot, self.signers, identity=self.server,
            keys=self.store / "keys", clock=self.clock, **options,
        ) as running:  # fmt: skip
            yield running

    async def replay(self, running, steps):
        """Let clients do these steps in this order."""
        async with contextlib.AsyncExitStack() as stack:
            present = {}
            for what, client, trip in steps:
                if client not in present:
                    present[client] = await stack.enter_async_context(self.client(running, client))
                present[client].patient = True
                found = await unless_over(
                    running, getattr(present[client], what)(*[trip] * (what != "fetch"))
                )
                present[client].patient = False
                assert what != "fetch" or found == trip
                self.done += 1

    @contextlib.asynccontextmanager
    async def client(self, running, client):
        """Connect a client, who joins again until the helpers have signed the policy."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        connection = await stack.enter_async_context(running.connect(str(client), self.clock))
                        break
                    except grpc.aio.AioRpcError as error:
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise
            if client in self.puppets:
                self.puppets[client].connection = connection
            else:
                trainee = ClientTrainer(str(client), app_of(self.simulation, client))
                state = self.folder / "clients" / str(client)
                self.puppets[client] = SecurePuppet(str(client), connection, trainee, state)
            yield self.puppets[client]
