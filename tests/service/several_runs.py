"""A server with several runs in this process, over loopback, and clients of each."""

import asyncio
import contextlib

from service_harness import PATIENCE, Puppet, Running, app_of, enrolled_key

from tardigrad.experiments.runs.hosted_run import HostedRun, with_clients_data
from tardigrad.service.access.enrolment import LIST
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.any_run import take_part_in_any
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.client.participant import Participant
from tardigrad.service.client.reconnecting import ask_run
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.lifecycle import ServerProcess


class SeveralRunning:
    """A server that serves several runs."""

    def __init__(self, process, keys, address, signers, work):
        self.process, self.keys, self.address = process, keys, address
        self.signers, self.work = signers, work
        self.runs = {run.name: run for run in process.runs}

    def signer(self, name):
        if name not in self.signers:
            self.signers[name] = enrolled_key(self.keys, name)
        return Signer(name, self.signers[name])

    operator = Running.operator

    def connect(self, name, run=""):
        return Connection(self.address, self.signer(name), None, run=run)

    def participant(self, name, run, app, seen=lambda line: None, **options):
        trainer = ClientTrainer(name, app)
        state = self.keys / f"{name}.state"
        return Participant(
            self.address, self.signer(name), None, trainer, state, PATIENCE, seen, run=run, **options
        )

    def any_run(self, name, app_for, seen=lambda line: None):
        """A client that takes part in any run. `app_for`: makes its `Client` for the run of a name."""

        def ask(wanted):
            return ask_run(self.address, self.signer(name), None, PATIENCE, wanted, bool(wanted))

        def take_part(offered):
            seen(offered.name)
            app = app_for(offered.name)
            return self.participant(name, offered.name, app, moves_on=True).take_part()

        return take_part_in_any(ask, take_part, self.keys / f"{name}.state")


@contextlib.asynccontextmanager
async def serving_several(folder, configs, signers=None, prepare=lambda name, run: None, metrics=False):
    """Serve these configs, by name, from the folders of the runs in `folder`. `prepare`: is given each run
    before it is started. It is left when the process is asked to stop and has ended, unless it has before."""
    keys = folder / "keys"
    keys.mkdir(exist_ok=True, parents=True)
    (keys / LIST).touch()
    endpoint = Endpoint(keys=keys, insecure=True, metrics_port=0 if metrics else None)
    port = asyncio.get_running_loop().create_future()
    with contextlib.ExitStack() as stack:
        hosted = {
            name: HostedRun(with_clients_data(config), folder / "runs" / name, endpoint)
            for name, config in configs.items()
        }
        runs = {name: one.open(stack) for name, one in hosted.items()}
        finished = {name: (hosted[name].over, 0.0) for name, run in runs.items() if run is None}
        going_on = [run for run in runs.values() if run is not None]
        for run in going_on:
            prepare(run.name, run)
        process = ServerProcess(endpoint, alone=False)
        await process.start(going_on, finished)
        work = asyncio.ensure_future(process.serve(port.set_result))
        await asyncio.wait({port, work}, return_when=asyncio.FIRST_COMPLETED)
        if not port.done():
            await work
        address = f"127.0.0.1:{await port}"
        try:
            yield SeveralRunning(process, keys, address, {} if signers is None else signers, work)
        finally:
            process._ask_to_stop()
            await asyncio.wait_for(work, PATIENCE)


class RunClients:
    """The clients of one run, who do what the trace of a simulation says, one thing at a time."""

    def __init__(self, running, name, simulation, stack):
        self._running, self._name, self._simulation, self._stack = running, name, simulation, stack
        self._puppets = {}

    async def do(self, what, client, trip):
        if client not in self._puppets:
            joining = self._running.connect(str(client), self._name)
            connection = await self._stack.enter_async_context(joining)
            trainee = ClientTrainer(str(client), app_of(self._simulation, client))
            state = self._running.keys / f"{client}.state" / connection.run
            self._puppets[client] = Puppet(connection, trainee, state)
        puppet = self._puppets[client]
        if what == "fetch":
            assert await puppet.fetch() == trip
        else:
            await getattr(puppet, what)(trip)
