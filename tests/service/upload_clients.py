"""A server with a small model, and clients that upload to it."""

import contextlib
from dataclasses import replace

import grpc
from service_harness import app_of, fetched, serving

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer

SERVICE = {
    "requests_per_second": 1000, "poll_seconds": 100.0, "idle_seconds": 100.0, "examples_bound": 10_000,
    "linger_seconds": 0.0,
}  # fmt: skip

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2, staleness_bound=0), stop=td.Stop(trips=20),
    service=SERVICE,
)  # fmt: skip

SIMULATION = build(CONFIG)


async def trained(connection, client=0):
    """Fetch a task and train it as this client of the simulation; return what can be delivered."""
    found = await fetched(connection)
    return ClientTrainer(str(client), app_of(SIMULATION, client)).train(found, {})


@contextlib.asynccontextmanager
async def two_clients(folder):
    """Serve CONFIG, and connect two clients."""
    async with serving(CONFIG, folder) as running, running.connect("0") as ann, running.connect("1") as bob:
        yield running, ann, bob


async def code_of(call):
    """Return the gRPC status of a call."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def changed(finished, **changes):
    """Return a trained trip with changes to its upload."""
    return replace(finished, upload=replace(finished.upload, **changes))


def with_delta(finished, value):
    """Return a trained trip with this value in its delta."""
    delta = finished.upload.vectors["delta"].clone()
    delta[3] = value
    return changed(finished, vectors={"delta": delta})


def raising(error):
    """Return a function that raises this error, whatever it is given."""

    def raising(*_):
        raise error

    return raising
