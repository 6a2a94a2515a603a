"""Memory of a server with a large model: when it starts, receives uploads, makes steps, and recovers.

    python benchmarks/large.py --parameters 300_000_000
    python benchmarks/large.py --parameters 30_000_000 --encoding int8 --trips 6

`tardigrad serve` with default limits runs in a process of its own; two clients on loopback download each
version and send synthetic uploads. First both send uploads that are refused at their last number, so that
the memory of receiving and checking alone is seen. Then they make trips; the server is stopped and goes on
from its snapshot; more trips; it is killed and recovers from snapshot and journal. Memory is read 50 times a
second: anonymous memory, which nobody can take back, and all of it (RSS), which includes pages of files that
the kernel drops when it needs room. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import torch
from pydantic import TypeAdapter

from tardigrad.core.upload import DTYPES, TypedVector, Vectors
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.service.access.enrolment import LIST, make_key, public_text, read_key
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.connection import OPTIONS
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import REVISION, chunks, digest_of, layout_of, size_of, to_wire

MEGABYTE = 2**20
NAMES = ("ann", "bob")
BUFFER = 2
MODEL = """
import torch

class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros({parameters}))

def model():
    return Large()
"""
CONFIG = """
{encoding}
[algorithm]
kind = "fedbuff"
[pace]
kind = "asynchronous"
concurrency = 2
[buffer]
size = {buffer}
[stop]
trips = 1_000_000
"""


# -- the server ------------------------------------------------------------------------------------


class Watched:
    """The server's process, and the most memory that it has taken since `reset`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tardigrad", "serve", str(folder / "run.toml"), "--out"]
        command += [str(folder / "run"), "--port", "0", "--keys", str(folder / "keys"), "--insecure"]
        command += ["--model", f"{folder / 'model.py'}:model", "--log-level", "warning"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.anonymous = self.resident = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        assert self.process.stdout is not None
        began = time.monotonic()
        while not (line := self.process.stdout.readline()).startswith("listening on "):
            if not line:
                raise SystemExit("the server did not start")
        self.seconds = time.monotonic() - began
        self.address = line.split()[-1]

    def now(self) -> tuple[int, int]:
        """Return anonymous and resident bytes."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0, 0
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
        found |= {"VmRSS": sum(found.values())}
        return found.get("RssAnon", 0), found["VmRSS"]

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            anonymous, resident = self.now()
            self.anonymous, self.resident = max(self.anonymous, anonymous), max(self.resident, resident)

    def reset(self) -> None:
        """Forget the largest values."""
        self.anonymous, self.resident = self.now()

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(600)
        self._over.set()


# -- the clients -----------------------------------------------------------------------------------


class LargeClient:
    """Downloads tasks and forgets them, and sends the same numbers again and again."""

    def __init__(self, name: str, address: str, keys: Path, kind: str, good: Vectors, bad: Vectors) -> None:
        self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        self._stub = v1_grpc.FederationStub(self._channel)
        self._signer = Signer(name, read_key(keys / f"{name}.key"))
        self._kind, self._good, self._bad = kind, good, bad
        self._task: v1.TaskHeader | None = None
        self._run = ""

    async def join(self) -> None:
        """Open a session."""
        request = v1.JoinRequest(revision=REVISION).SerializeToString()
        joined = await self._stub.Join(self._signer.sign("Join", request))
        self._run, self._signer.session = joined.run, joined.session

    async def fetch(self) -> None:
        """Download a task."""
        while self._task is None:
            async for part in self._stub.FetchTask(self._signer.sign("FetchTask")):
                if part.WhichOneof("part") == "header":
                    self._task = part.header

    async def deliver(self, good: bool = True) -> v1.Answer:
        """Send an upload; a bad one is refused by an error."""
        assert self._task is not None
        vectors, task = self._good if good else self._bad, self._task
        header = v1.UploadHeader(
            run=self._run, trip=task.trip, version=task.version, vectors=to_wire(layout_of(vectors)),
            digest=await asyncio.to_thread(digest_of, vectors), examples=1, steps=1, epoch=task.epoch,
            encoding=self._kind,
        )  # fmt: skip
        signed = self._signer.sign("Deliver", header.SerializeToString())

        async def parts() -> AsyncIterator[v1.UploadPart]:
            yield v1.UploadPart(header=signed)
            for chunk in chunks(vectors):
                yield v1.UploadPart(chunk=chunk)

        answer: v1.Answer = await self._stub.Deliver(parts())
        self._task = None
        return answer

    async def trips(self, count: int) -> None:
        """Make trips."""
        for _ in range(count):
            await self.fetch()
            answer = await self.deliver()
            assert answer.accepted, answer

    async def refused(self) -> None:
        """Send an upload that is refused."""
        await self.fetch()
        try:
            await self.deliver(good=False)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
        else:
            raise SystemExit("a bad upload was accepted")

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


def synthetic(kind: str, parameters: int) -> tuple[Vectors, Vectors]:
    """Return an upload as it travels, and one that is refused at its end. One number in memory stands for all
    of a vector."""
    if kind:
        layout = TypeAdapter(AnyEncoding).validate_python({"kind": kind}).layout("delta", parameters)
    else:
        layout = (TypedVector("delta", "float32", parameters),)
    good = {}
    for part in layout:
        value = 1e-6 if DTYPES[part.dtype].is_floating_point else 1
        good[part.name] = torch.full((1,), value, dtype=DTYPES[part.dtype]).expand(part.length)
    *others, last = good
    bad = {name: good[name] for name in others} | {last: good[last].clone()}
    bad[last][-1] = float("nan")
    return good, bad


# -- measuring -------------------------------------------------------------------------------------


def measure(folder: Path, parameters: int, kind: str, trips: int) -> dict[str, object]:
    """Return the largest memory of each phase in MB, and times as large as the model."""
    good, bad = synthetic(kind, parameters)
    model = 4 * parameters
    phases: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}

    def phase(name: str, server: Watched, began: float, base: tuple[int, int] = (0, 0)) -> None:
        anonymous, resident = server.anonymous - base[0], server.resident - base[1]
        phases[name] = {
            "anonymous_mb": round(anonymous / MEGABYTE), "rss_mb": round(resident / MEGABYTE),
            "anonymous_models": round(anonymous / model, 2), "rss_models": round(resident / model, 2),
        }  # fmt: skip
        seconds[name] = round(time.monotonic() - began, 1)
        print(f"{name}: {phases[name]}, {seconds[name]} s", flush=True)
        server.reset()

    def with_clients(server: Watched, work: Callable[[LargeClient], Awaitable[None]]) -> None:
        async def main() -> None:
            keys = folder / "keys"
            clients = [LargeClient(name, server.address, keys, kind, good, bad) for name in NAMES]
            for client in clients:
                await client.join()
            await asyncio.gather(*(work(client) for client in clients))
            for client in clients:
                await client.close()

        asyncio.run(main())

    began = time.monotonic()
    server = Watched(folder)
    phase("starting", server, began)
    with_clients(server, LargeClient.fetch)
    base, began = server.now(), time.monotonic()
    server.reset()
    with_clients(server, LargeClient.refused)
    phase("receiving two uploads, above the start", server, began, base)
    began = time.monotonic()
    with_clients(server, lambda client: client.trips(trips))
    phase("serving", server, began)
    began = time.monotonic()
    server.end(signal.SIGTERM)
    phase("stopping", server, began)
    began = time.monotonic()
    server = Watched(folder)
    phase("going on from a snapshot", server, began)
    began = time.monotonic()
    with_clients(server, lambda client: client.trips(trips))
    phase("serving again", server, began)
    server.end(signal.SIGKILL)
    began = time.monotonic()
    server = Watched(folder)
    phase("recovering from snapshot and journal", server, began)
    server.end(signal.SIGTERM)
    return {
        "parameters": parameters, "encoding": kind or "float32", "model_mb": round(model / MEGABYTE),
        "upload_mb": round(size_of(layout_of(good)) / MEGABYTE), "phases": phases, "seconds": seconds,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=int, default=30_000_000)
    parser.add_argument("--encoding", default="", help="of uploads, such as int8; default: none")
    parser.add_argument("--trips", type=int, default=4, help="of each client, in each of the two phases")
    parser.add_argument("--folder", type=Path, help="where the run is written; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        (folder / "keys").mkdir()
        made = {name: public_text(make_key(folder / "keys" / f"{name}.key")) for name in NAMES}
        (folder / "keys" / LIST).write_text("".join(f"{name} {key}\n" for name, key in made.items()))
        (folder / "model.py").write_text(MODEL.format(parameters=given.parameters))
        encoding = f'encoding = "{given.encoding}"' if given.encoding else ""
        (folder / "run.toml").write_text(CONFIG.format(encoding=encoding, buffer=BUFFER))
        print(json.dumps(measure(folder, given.parameters, given.encoding, given.trips)))


if __name__ == "__main__":
    main()
