"""How many uploads a second the service takes, beside servers that do nothing with them.

    python benchmarks/service.py --rounds 7 --uploads 160 --flower .bench-venvs/flower/bin/python

Uploads of a million float32 from 4 client processes over loopback, and of a million numbers in int8. The bare
server is gRPC's own, takes the same messages and answers. The disk is asked for synced writes of the same
size, as many at once as there are clients. All take turns; what clients send is made before the clock starts,
and so are their tickets, so that the server is what is measured. Flower's server takes its turns where the
Python of a virtual environment with it is given. At last a crowd: clients that are all connected ask for a
task at random moments of ten seconds.
Results: benchmarks/service.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from pydantic import TypeAdapter
from report import HERE, Machine, Quiet, sentence, table

from tardigrad.core.upload import DTYPES, Vectors
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.service.access.certificates import AUTHORITY, SERVER, SERVER_KEY, make_certificates
from tardigrad.service.access.enrolment import LIST, make_key, public_text, read_key
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.connection import OPTIONS
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import (
    LARGEST_MESSAGE,
    REVISION,
    chunks,
    digest_of,
    layout_of,
    to_wire,
)

SIZE = 1_000_000
CLIENTS = 4
CROWD_SECONDS, CROWD_JOINING = 10.0, 15.0
BARE, BARE_TLS = "bare server", "bare server with TLS"
OURS, SAFE = "without TLS and durability", "with both"
INT8, INT8_SAFE = "int8, without TLS and durability", "int8, with both"
DISK, FLOWER = "disk", "Flower's SuperLink"
MODEL = """
import torch

def model():
    return torch.nn.Linear(1000, 1000, bias=False)
"""
CONFIG = """
encoding = "{encoding}"
[algorithm]
kind = "fedbuff"
[pace]
kind = "asynchronous"
concurrency = {tickets}
[buffer]
size = 10
[stop]
trips = 1_000_000_000
[service]
requests_per_second = 1e9
"""


# -- clients ---------------------------------------------------------------------------------------


class Load:
    """One client process: uploads one after the other, each under a name of its own."""

    def __init__(
        self, address: str, authority: bytes | None, keys: Path, names: list[str], encoding: str = ""
    ) -> None:
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority), OPTIONS)
        self._stub = v1_grpc.FederationStub(self._channel)
        self._signers = [Signer(name, read_key(keys / f"{name}.key")) for name in names]
        vectors, self._encoding = uploaded(encoding), encoding
        self._layout = layout_of(vectors)
        self._body = [v1.UploadPart(chunk=chunk) for chunk in chunks(vectors)]
        self._digest = digest_of(vectors)
        self._headers: list[v1.UploadPart] = []
        self._run, self._joined = "", v1.Joined()

    async def join(self) -> None:
        """One session serves all names."""
        request = v1.JoinRequest(revision=REVISION).SerializeToString()
        joined = await self._stub.Join(self._signers[0].sign("Join", request), wait_for_ready=True)
        self._run, self._joined = joined.run, joined
        for signer in self._signers:
            signer.session = joined.session

    async def prepare(self, tickets: bool) -> None:
        """The headers of the next uploads, for tickets that the server gives; nothing is downloaded."""
        self._headers = []
        for signer in self._signers:
            trip = version = epoch = 0
            if tickets:
                call = self._stub.FetchTask(signer.sign("FetchTask"))
                header = (await call.read()).header
                call.cancel()
                trip, version, epoch = header.trip, header.version, header.epoch
            content = v1.UploadHeader(
                run=self._run, trip=trip, version=version, vectors=to_wire(self._layout), digest=self._digest,
                examples=10, steps=1, loss=1.0, epoch=epoch, encoding=self._encoding,
            )  # fmt: skip
            await self.complete(signer, content)
            signed = signer.sign("Deliver", content.SerializeToString())
            self._headers.append(v1.UploadPart(header=signed))

    async def complete(self, signer: Signer, header: v1.UploadHeader) -> None:
        """Put into a header what clients of another kind add to it."""

    async def go(self) -> tuple[float, float]:
        """When it began and when the last was acknowledged."""
        began = time.monotonic()
        for header in self._headers:
            answer = await self._stub.Deliver(iter([header, *self._body]))
            assert answer.accepted, answer
        return began, time.monotonic()


def uploaded(encoding: str) -> Vectors:
    """What one upload consists of."""
    if not encoding:
        return {"delta": torch.full((SIZE,), 1e-6)}
    parts = TypeAdapter(AnyEncoding).validate_python(encoding).layout("delta", SIZE)
    return {name: torch.full((length,), 1e-6 if dtype == "float32" else 1, dtype=DTYPES[dtype])
            for name, dtype, length in parts}  # fmt: skip


def load_process(pipe: Pipe, secure: bool, keys: Path, names: list[str], kind: type[Load] = Load) -> None:
    """Do what is asked through the pipe. `kind`: of the clients."""
    authority = (keys / AUTHORITY).read_bytes() if secure else None

    async def main() -> None:
        loads: dict[str, Load] = {}
        while asked := await asyncio.to_thread(pipe.recv):
            address, ours, encoding, what = asked
            if address not in loads:
                loads[address] = kind(address, authority, keys, names, encoding)
                if ours:
                    await loads[address].join()
            load = loads[address]
            pipe.send(await load.prepare(ours) if what == "prepare" else await load.go())

    asyncio.run(main())


# -- servers ---------------------------------------------------------------------------------------


class Bare(v1_grpc.FederationServicer):
    """Takes uploads and does nothing with them."""

    async def Deliver(self, _: Any, context: grpc.aio.ServicerContext) -> v1.Answer:
        while (part := await context.read()) is not grpc.aio.EOF:
            assert part.WhichOneof("part")
        return v1.Answer(accepted=True)


async def serve_bare(servicer: v1_grpc.FederationServicer, pipe: Pipe, keys: Path | None) -> None:
    """Serve until the pipe says that it is enough, with TLS if there are keys."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", LARGEST_MESSAGE)])
    v1_grpc.add_FederationServicer_to_server(servicer, server)
    if keys is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (keys / SERVER_KEY).read_bytes(), (keys / SERVER).read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    await asyncio.to_thread(pipe.recv)
    await server.stop(0)


def bare_process(pipe: Pipe, keys: Path | None) -> None:
    """A bare server, with TLS if there are keys."""
    asyncio.run(serve_bare(Bare(), pipe, keys))


class Ours:
    """`tardigrad serve` in a process of its own."""

    command: tuple[str, ...] = (sys.executable, "-m", "tardigrad")

    def __init__(self, folder: Path, keys: Path, *options: str, encoding: str = "float32") -> None:
        command = [*self.command, "serve", str(folder / f"{encoding}.toml"), "--out"]
        command += [str(folder / f"{encoding}-{len(options)}"), "--port", "0", "--keys", str(keys)]
        command += ["--model", f"{folder / 'model.py'}:model", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"the server did not start: {line}")
        self.address = line.split()[-1]

    def peak_mb(self) -> float:
        """Resident memory, at most, so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 1024

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.terminate()
        self.process.wait(60)


def disk_rate(folder: Path, uploads: int) -> float:
    """Synced writes a second, of the size of an upload."""
    body = np.random.default_rng(0).bytes(4 * SIZE)
    numbers = iter(range(uploads))
    lock = threading.Lock()

    def writing() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            with (folder / f"disk-{number}").open("wb", buffering=0) as file:
                file.write(body)
                os.fsync(file.fileno())

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(writing) for _ in range(CLIENTS)]:
            done.result()
    rate = uploads / (time.monotonic() - began)
    for file in folder.glob("disk-*"):
        file.unlink()
    return rate


# -- measuring -------------------------------------------------------------------------------------


def processor_seconds(pid: int) -> float:
    """That a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Crew:
    """The client processes."""

    def __init__(
        self, secure: bool, keys: Path, names: list[str], kind: type[Load] = Load, each: int = 1
    ) -> None:
        """`each`: uploads of each name in one round."""
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for number in range(CLIENTS):
            ours, theirs = context.Pipe()
            arguments = (theirs, secure, keys, names[number::CLIENTS], kind)
            process = context.Process(target=load_process, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self._uploads = each * len(names)

    def rate(self, address: str, pid: int, ours: bool, encoding: str = "") -> tuple[float, float]:
        """Uploads a second that a server takes from all of them, and its processor time for one in ms."""
        self.prepare(address, ours, encoding)
        before = processor_seconds(pid)
        times = self.go(address, ours, encoding)
        used = 1000 * (processor_seconds(pid) - before) / self._uploads
        return self._uploads / (max(end for _, end in times) - min(began for began, _ in times)), used

    def prepare(self, address: str, ours: bool, encoding: str = "") -> None:
        """Have the headers of the next uploads made, for tickets if the server is ours."""
        self._ask((address, ours, encoding, "prepare"))

    def go(self, address: str, ours: bool, encoding: str = "") -> list[tuple[float, float]]:
        """Have what was prepared sent; return when each process began and ended."""
        return self._ask((address, ours, encoding, "go"))

    def _ask(self, message: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(message)
        return [pipe.recv() for pipe in self._pipes]

    def stop(self) -> None:
        """Send them home."""
        for pipe, process in zip(self._pipes, self._processes):
            pipe.send(None)
            process.join(20)


def set_up(folder: Path, uploads: int, crowd: int) -> tuple[Path, list[str]]:
    """Keys, names, config and model."""
    keys = folder / "keys"
    keys.mkdir()
    make_certificates(keys, ["localhost", "127.0.0.1"])
    names = [f"client{number}" for number in range(max(uploads, crowd))]
    made = {name: public_text(make_key(keys / f"{name}.key")) for name in names}
    (keys / LIST).write_text("".join(f"{name} {public}\n" for name, public in made.items()))
    for encoding in ("float32", "int8"):
        (folder / f"{encoding}.toml").write_text(CONFIG.format(tickets=len(names), encoding=encoding))
    (folder / "model.py").write_text(MODEL)
    return keys, names


def flower_rate(python: str) -> float:
    """Uploads a second that Flower's server adds up."""
    command = [python, str(HERE / "service_peers.py"), "--seconds", "8"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["uploads"] / found["seconds"])


def crowd_process(pipe: Pipe, address: str, keys: Path, names: list[str]) -> None:
    """Clients that are connected all the while: how long each waited for its task, in ms."""
    authority = (keys / AUTHORITY).read_bytes()

    async def one(name: str, ready: asyncio.Semaphore, go: asyncio.Event) -> float:
        load = Load(address, authority, keys, [name])
        async with ready:
            await load.join()
        await go.wait()
        await asyncio.sleep(random.uniform(0, CROWD_SECONDS))
        began = time.monotonic()
        await load.prepare(True)
        return 1000 * (time.monotonic() - began)

    async def main() -> None:
        ready, go = asyncio.Semaphore(20), asyncio.Event()
        tasks = [asyncio.ensure_future(one(name, ready, go)) for name in names]
        asyncio.get_running_loop().call_later(CROWD_JOINING, go.set)
        pipe.send(await asyncio.gather(*tasks))

    asyncio.run(main())


def crowd_waits(address: str, keys: Path, names: list[str]) -> list[float]:
    """From two processes."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(2):
        ours, theirs = context.Pipe()
        arguments = (theirs, address, keys, names[number::2])
        context.Process(target=crowd_process, args=arguments, daemon=True).start()
        pipes.append(ours)
    return sorted(wait for pipe in pipes for wait in pipe.recv())


def measure(folder: Path, rounds: int, uploads: int, crowd: int, flower: str) -> dict[str, Any]:
    """Rates by variant, one for each round, and the memory of our servers."""
    keys, names = set_up(folder, uploads, crowd)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        crews = {secure: Crew(secure, keys, names[:uploads]) for secure in (False, True)}
        for crew in crews.values():
            stack.callback(crew.stop)

        def bare(secure: bool) -> Callable[[], tuple[float, float]]:
            here, there = context.Pipe()
            process = context.Process(
                target=bare_process, args=(there, keys if secure else None), daemon=True
            )
            process.start()
            stack.callback(here.send, None)
            address, pid = str(here.recv()), int(process.pid or 0)
            return lambda: crews[secure].rate(address, pid, False)

        def ours(server: Ours, secure: bool, encoding: str = "") -> Callable[[], tuple[float, float]]:
            stack.callback(server.stop)
            return lambda: crews[secure].rate(server.address, server.process.pid, True, encoding)

        fast = ("--insecure", "--no-durability")
        servers = {
            OURS: Ours(folder, keys, *fast), SAFE: Ours(folder, keys),
            INT8: Ours(folder, keys, *fast, encoding="int8"), INT8_SAFE: Ours(folder, keys, encoding="int8"),
        }  # fmt: skip
        variants: dict[str, Callable[[], tuple[float, float]]] = {
            BARE: bare(False),
            OURS: ours(servers[OURS], False),
            BARE_TLS: bare(True),
            SAFE: ours(servers[SAFE], True),
            INT8: ours(servers[INT8], False, "int8"),
            INT8_SAFE: ours(servers[INT8_SAFE], True, "int8"),
            DISK: lambda: (disk_rate(folder, uploads), 0.0),
        }
        if flower:
            variants[FLOWER] = lambda: (flower_rate(flower), 0.0)
        rates: dict[str, list[float]] = {name: [] for name in variants}
        costs: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(-1, rounds):  # the first round warms up
            for name, variant in variants.items():
                if name == FLOWER and number % 3:
                    continue  # it takes long to start
                rate, cost = variant()
                print(f"{number} {name}: {rate:.1f} uploads/s, {cost:.1f} ms", file=sys.stderr)
                if number >= 0:
                    rates[name].append(rate)
                    costs[name].append(cost)
        peaks = {name: server.peak_mb() for name, server in servers.items()}
        waits = crowd_waits(servers[SAFE].address, keys, names[:crowd]) if crowd else []
        return {"rates": rates, "costs": costs, "peak_mb": peaks, "crowd_ms": waits}


def rows_of(results: dict[str, Any]) -> list[list[str]]:
    """The table: what over what, its ratio, its aim, and the figures behind it."""
    rates, costs = results["rates"], results["costs"]
    middle = {name: statistics.median(of) for name, of in rates.items()}
    spent = {name: statistics.median(of) for name, of in costs.items()}
    least = [min(pair) for pair in zip(rates[BARE_TLS], rates[DISK])]

    def ratio(over: list[float], under: list[float]) -> str:
        return f"{statistics.median(one / other for one, other in zip(over, under)):.2f}"

    rows = [
        ["what over what", "ratio", "aim", "figures behind it (this machine only)"],
        ["without TLS and durability, over the bare server", ratio(rates[OURS], rates[BARE]), "0.8",
         f"{middle[OURS]:.0f} over {middle[BARE]:.0f} uploads/s, {spent[OURS]:.1f} and {spent[BARE]:.1f} ms "
         "of processor time"],
        ["with both, over the smaller of the bare TLS server and the disk", ratio(rates[SAFE], least), "0.7",
         f"{middle[SAFE]:.0f}; {middle[BARE_TLS]:.0f} and {middle[DISK]:.0f} uploads/s"],
        ["with both, over the bare TLS server", ratio(rates[SAFE], rates[BARE_TLS]), "",
         f"{spent[SAFE]:.1f} and {spent[BARE_TLS]:.1f} ms of processor time"],
        ["processor time for an upload without TLS and durability, over the bare server",
         ratio(costs[OURS], costs[BARE]), "1.25", f"{spent[OURS]:.1f} over {spent[BARE]:.1f} ms"],
        ["processor time for an upload with both, over the bare TLS server",
         ratio(costs[SAFE], costs[BARE_TLS]), "1.5", f"{spent[SAFE]:.1f} over {spent[BARE_TLS]:.1f} ms"],
    ]  # fmt: skip
    for one, other in ((INT8, OURS), (INT8_SAFE, SAFE)):
        rows.append([f"{one}, over float32", ratio(rates[one], rates[other]), "2",
                     f"{middle[one]:.0f} over {middle[other]:.0f} uploads/s, {spent[one]:.1f} and "
                     f"{spent[other]:.1f} ms of processor time"])  # fmt: skip
    if FLOWER in rates:
        for name in (OURS, SAFE):
            rows.append([f"{name}, over {FLOWER}", f"{middle[name] / middle[FLOWER]:.0f}", "10",
                         f"{middle[name]:.0f} over {middle[FLOWER]:.2f} uploads/s"])  # fmt: skip
    peaks = results["peak_mb"]
    rows.append(["peak of the server's resident memory", "", "400 MB",
                 f"{peaks[OURS]:.0f} MB, {peaks[SAFE]:.0f} MB with both"])  # fmt: skip
    waits = results["crowd_ms"]
    if waits:
        worst = waits[int(0.99 * len(waits))]
        rows.append([f"{len(waits)} clients connected: wait for a task, 99th percentile", "", "60 ms",
                     f"{worst:.0f} ms; median {statistics.median(waits):.0f} ms"])  # fmt: skip
    return rows


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    said = sentence(results["machine"], checked=True)
    return f"{table(rows_of(results))}\n\n*Rounds: {results['rounds']}. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--uploads", type=int, default=160, help="of one variant in one round")
    parser.add_argument("--crowd", type=int, default=1000, help="clients that are connected at once")
    parser.add_argument("--flower", default="", help="the Python of a virtual environment with Flower")
    given = parser.parse_args()
    machine, quiet = Machine(), Quiet()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), given.rounds, given.uploads, given.crowd, given.flower)
    results["machine"] = machine.description()
    results["rounds"] = given.rounds
    print(part(results))
    quiet.write("service", results)


if __name__ == "__main__":
    main()
