"""How many whole trips a second the service makes with a small model, beside a server that only answers.

    python benchmarks/service_trips.py --rounds 5

200 clients in 4 processes fetch a task of 10,000 float32 and deliver an upload of as many, over and over.
Every request is signed, the connection has TLS, and our server is durable. The bare server is gRPC's own with
TLS; it answers the same calls with messages of the same size and checks nothing. The two take turns. The
clients share the cores with the server, so its processor time for a trip says more than the rate.
Results: benchmarks/service_trips.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import grpc
import torch
from report import Machine, Quiet, sentence, table

from service import Bare, Crew, Load, Ours, serve_bare, set_up
from tardigrad.core.upload import Vectors
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import chunks, digest_of, layout_of, to_wire

SMALL = 10_000
NAMES, TRIPS = 200, 5
AT_ONCE = 8
"""Trips under way in one process. All use one connection, which may have 16 calls at once; those that have
just ended still count."""
OURS, BARE = "our server", "bare server with TLS"
MODEL = """
import torch

def model():
    return torch.nn.Linear(100, 100, bias=False)
"""


def vectors_of(name: str) -> Vectors:
    """What travels in one direction."""
    return {name: torch.full((SMALL,), 1e-6)}


class TripLoad(Load):
    """One client process: its clients make trips at the same time, each one after the other."""

    async def prepare(self, tickets: bool) -> None:
        """Make what all uploads have in common. `tickets`: whether the server is ours."""
        vectors = vectors_of("delta")
        self._layout, self._digest = layout_of(vectors), digest_of(vectors)
        self._body = [v1.UploadPart(chunk=chunk) for chunk in chunks(vectors)]

    async def go(self) -> tuple[float, float]:
        """Return when the first trip began and when the last was acknowledged."""
        began, calls = time.monotonic(), asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._trips(signer, calls) for signer in self._signers))
        return began, time.monotonic()

    async def _trips(self, signer: Signer, calls: asyncio.Semaphore) -> None:
        for _ in range(TRIPS):
            async with calls:
                await self._trip(signer)

    async def _trip(self, signer: Signer) -> None:
        header, size = v1.TaskHeader(), 0
        async for part in self._stub.FetchTask(signer.sign("FetchTask")):
            if part.WhichOneof("part") == "header":
                header = part.header
            size += len(part.chunk)
        assert size == 4 * SMALL, f"{size} bytes were downloaded"
        content = v1.UploadHeader(
            run=self._run, trip=header.trip, version=header.version, vectors=to_wire(self._layout),
            digest=self._digest, examples=10, steps=1, loss=1.0, epoch=header.epoch,
        )  # fmt: skip
        signed = signer.sign("Deliver", content.SerializeToString())
        answer = await self._stub.Deliver(iter([v1.UploadPart(header=signed), *self._body]))
        assert answer.accepted, answer


class BareTrips(Bare):
    """Answers the calls of a trip and checks nothing."""

    def __init__(self) -> None:
        vectors = vectors_of("model")
        header = v1.TaskHeader(settings="{}", vectors=to_wire(layout_of(vectors)))
        self._parts = [v1.TaskPart(header=header)] + [v1.TaskPart(chunk=chunk) for chunk in chunks(vectors)]

    async def FetchTask(self, _: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        for part in self._parts:
            await context.write(part)


def bare_trips_process(pipe: Pipe, keys: Path | None) -> None:
    """A bare server."""
    asyncio.run(serve_bare(BareTrips(), pipe, keys))


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Rates and processor time by server, one for each round, and the memory of ours."""
    keys, names = set_up(folder, NAMES, 0)
    (folder / "model.py").write_text(MODEL)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        crew = Crew(True, keys, names, TripLoad, TRIPS)
        stack.callback(crew.stop)
        here, there = context.Pipe()
        bare = context.Process(target=bare_trips_process, args=(there, keys), daemon=True)
        bare.start()
        stack.callback(here.send, None)
        ours = Ours(folder, keys)
        stack.callback(ours.stop)
        variants = {BARE: (str(here.recv()), int(bare.pid or 0), False),
                    OURS: (ours.address, ours.process.pid, True)}  # fmt: skip
        rates: dict[str, list[float]] = {name: [] for name in variants}
        costs: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(-1, rounds):  # the first round warms up
            for name, variant in variants.items():
                rate, cost = crew.rate(*variant)
                print(f"{number} {name}: {rate:.0f} trips/s, {cost:.2f} ms", file=sys.stderr)
                if number >= 0:
                    rates[name].append(rate)
                    costs[name].append(cost)
        return {"rates": rates, "costs": costs, "peak_mb": ours.peak_mb()}


def rows_of(results: dict[str, Any]) -> list[list[str]]:
    """The table: what, its ratio to the bare server, its aim, and the figures behind it."""
    rates, costs = results["rates"], results["costs"]
    ratios = {
        what: statistics.median(one / other for one, other in zip(of[OURS], of[BARE]))
        for what, of in (("rate", rates), ("cost", costs))
    }
    rate, bare = (statistics.median(rates[name]) for name in (OURS, BARE))
    spent, least = (statistics.median(costs[name]) for name in (OURS, BARE))
    return [
        ["a model of 10,000 parameters", "ratio to the bare server", "aim", "figures (this machine only)"],
        ["whole trips a second", f"{ratios['rate']:.2f}", "0.5, or 600/s", f"{rate:.0f} over {bare:.0f}"],
        ["the server's processor time for a trip", f"{ratios['cost']:.2f}", "",
         f"{spent:.2f} over {least:.2f} ms"],
        ["peak of the server's resident memory", "", "400 MB", f"{results['peak_mb']:.0f} MB"],
    ]  # fmt: skip


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    said = sentence(results["machine"], checked=True)
    return f"{table(rows_of(results))}\n\n*Rounds: {results['rounds']}. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    machine, quiet = Machine(), Quiet()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), given.rounds)
    results["machine"] = machine.description()
    results["rounds"] = given.rounds
    print(part(results))
    quiet.write("service_trips", results)


if __name__ == "__main__":
    main()
