"""What secure aggregation costs: clients, server, helper, and bytes on the wire.

    python benchmarks/secure.py --rounds 5 --uploads 200

Uploads of a million numbers of 32 bits from 4 client processes over loopback, to a server of a secure run
with one helper and to a server of the same run without masks. Both have TLS and durability, and take turns.
What clients send is made before the clock starts, so that the server is what is measured, and the helper
beside it by its processor time. A client's own additional work is measured apart, in one process.
Results: benchmarks/secure.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from report import Machine, sentence, table, write

from service import MODEL, SIZE, Crew, Load, processor_seconds, set_up
from tardigrad import Constant, FedBuff, Local
from tardigrad.core.upload import Upload, Vectors
from tardigrad.encodings.common_grid import Grid
from tardigrad.privacy.releases import digest_of as digest_of_version
from tardigrad.secure.envelopes import Purpose, new_sealing_key, seal
from tardigrad.secure.masks import masked, new_seeds, weighted_masks
from tardigrad.secure.policy import CodedVector, Facts, Policy, read_policy
from tardigrad.service.access.certificates import AUTHORITY, make_certificates
from tardigrad.service.access.enrolment import LIST, public_text, read_key
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import ClientMemory, TrainedUpload
from tardigrad.service.protocol.task_settings import to_json
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import chunks, digest_of, layout_of
from tardigrad.service.server.helper_connection import HelperConnection

BITS, BATCH, LARGE_BATCH = 32, 10, 50
GRID, MASKED = "plain grid", "masked"
SEEDS = (bytes(range(32)),)
"""The seeds of all uploads: the codes under the mask are zeros, so that the model stays as it is."""
CONFIG = """
[algorithm]
kind = "fedbuff"
staleness = "constant"
[pace]
kind = "asynchronous"
concurrency = {tickets}
[buffer]
size = {batch}
once_per_client = true
[stop]
trips = 1_000_000_000
[service]
requests_per_second = 1e9
"""
SECURE = """
[secure]
helpers = [{{ address = "{address}", identity = "{identity}", ca = "{ca}" }}]
"""


# -- clients ---------------------------------------------------------------------------------------


class MaskedLoad(Load):
    """A client process of a secure run."""

    _policy: Policy

    async def join(self) -> None:
        """One session serves all names; the upload is one of zeros, with a mask."""
        await super().join()
        self._policy = read_policy(self._joined.policy)
        codes: Vectors = {"delta/codes": torch.zeros(SIZE, dtype=torch.int32)}
        vectors = masked(codes, SEEDS, BITS)
        self._layout, self._digest = layout_of(vectors), digest_of(vectors)
        self._body = [v1.UploadPart(chunk=chunk) for chunk in chunks(vectors)]
        self._encoding = "grid"

    async def complete(self, signer: Signer, header: v1.UploadHeader) -> None:
        """Seal the seeds to the keys of now."""
        offered = await self._stub.OfferKeys(signer.sign("OfferKeys"))
        header.examples, header.steps, header.loss = 1, 1, 0.0
        policy = self._policy
        for helper, key, seed in zip(policy.helpers, offered.keys, SEEDS, strict=True):
            info = Purpose(
                policy.digest, helper, key.key_id, header.trip, header.version, signer.client, header.digest
            ).info()
            header.envelopes.append(v1.Envelope(key_id=key.key_id, sealed=seal(seed, key.public_key, info)))


def client_costs(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of processor time of one trip, by what they are for."""
    vector = torch.randn(SIZE) / 1000
    grid = Grid(uploads=BATCH)
    codes = {"delta/codes": (vector / grid.step).round().clamp(-grid.largest, grid.largest).to(torch.int32)}
    memory, version = ClientMemory(folder), {"model": vector}
    public = {quantum: new_sealing_key(quantum).public_bytes() for quantum in (False, True)}
    hidden = masked(codes, new_seeds(1), BITS)
    finished = TrainedUpload(0, 0, Upload(hidden, 1, 1, 0.0), {}, {}, 0, 1, "grid", SEEDS)
    work: dict[str, Callable[[], object]] = {
        "masks of one helper": lambda: masked(codes, new_seeds(1), BITS),
        "masks of two helpers": lambda: masked(codes, new_seeds(2), BITS),
        "an envelope": lambda: seal(SEEDS[0], public[False], bytes(32)),
        "an envelope, hybrid": lambda: seal(SEEDS[0], public[True], bytes(32)),
        "digest of the version": lambda: digest_of_version(version),
        "digest of the masked bytes": lambda: digest_of(hidden),
        "the upload on the client's disk": lambda: (memory.keep(finished), memory.drop(finished.trip)),
    }
    costs: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-2, 10 * rounds):  # the first two warm up
        for name, do in work.items():
            began = time.process_time()
            do()
            if number >= 0:
                costs[name].append(1000 * (time.process_time() - began))
    return costs


def wire_bytes() -> dict[str, int]:
    """Bytes that the seed for one helper adds to a header, by the kind of its envelope."""
    found = {}
    for name, quantum in (("classic", False), ("hybrid", True)):
        sealed = seal(SEEDS[0], new_sealing_key(quantum).public_bytes(), bytes(32))
        header = v1.UploadHeader(envelopes=[v1.Envelope(key_id=bytes(16), sealed=sealed)])
        found[name], found[f"{name}, in a message"] = len(sealed), header.ByteSize()
    return found


# -- server and helper -----------------------------------------------------------------------------


class Started:
    """A command of tardigrad in a process of its own, which listens."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "tardigrad", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                return
        raise SystemExit(f"`tardigrad {words[0]}` did not start")

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.terminate()
        self.process.wait(60)


def start_helper(folder: Path, keys: Path) -> tuple[Started, str]:
    """A helper that knows all clients of the server; also its identity."""
    own = folder / "helper-keys"
    own.mkdir()
    make_certificates(own, ["localhost", "127.0.0.1"])
    (own / LIST).write_text((keys / LIST).read_text())
    server = public_text(own_identity(keys))
    helper = Started("helper", "--out", folder / "helper", "--keys", own, "--port", 0, "--server", server)
    return helper, public_text(own_identity(own))


def start_server(folder: Path, keys: Path, name: str, config: str) -> Started:
    """A server of this config, with TLS and durability."""
    (folder / f"{name}.toml").write_text(config)
    return Started(
        "serve", folder / f"{name}.toml", "--out", folder / f"{name}-run", "--port", 0, "--keys", keys,
        "--model", f"{folder / 'model.py'}:model",
    )  # fmt: skip


def measure(folder: Path, rounds: int, uploads: int) -> dict[str, Any]:
    """Rates and processor times, one for each round."""
    folder.mkdir()
    keys, names = set_up(folder, uploads, 0)
    (folder / "model.py").write_text(MODEL)
    helper, identity = start_helper(folder, keys)
    plain = CONFIG.format(tickets=len(names), batch=BATCH)
    ca = folder / "helper-keys" / AUTHORITY
    secure = plain + SECURE.format(address=helper.address, identity=identity, ca=ca)
    with ExitStack() as stack:
        stack.callback(helper.stop)
        crews = {GRID: Crew(True, keys, names), MASKED: Crew(True, keys, names, MaskedLoad)}
        for crew in crews.values():
            stack.callback(crew.stop)
        servers = {
            GRID: start_server(folder, keys, "grid", 'encoding = "grid"\n' + plain),
            MASKED: start_server(folder, keys, "masked", secure),
        }
        for server in servers.values():
            stack.callback(server.stop)
        rates: dict[str, list[float]] = {name: [] for name in servers}
        costs: dict[str, list[float]] = {name: [] for name in (*servers, "helper")}
        for number in range(-1, rounds):  # the first round warms up
            for name, server in servers.items():
                encoding = "grid" if name == GRID else ""
                before = processor_seconds(helper.process.pid)
                rate, cost = crews[name].rate(server.address, server.process.pid, True, encoding)
                crews[name].prepare(server.address, True, encoding)  # returns when all steps are made
                spent = 1000 * (processor_seconds(helper.process.pid) - before) / uploads
                print(
                    f"{number} {name}: {rate:.1f} uploads/s, {cost:.1f} ms, {spent:.2f} ms", file=sys.stderr
                )
                if number >= 0:
                    rates[name].append(rate)
                    costs[name].append(cost)
                if number >= 0 and name == MASKED:
                    costs["helper"].append(spent)
    return {"rates": rates, "costs": costs}


async def busy_helper(folder: Path, rounds: int, batch: int) -> list[float]:
    """Milliseconds of a helper's processor time for a trip, one for each round, if its server always has a
    full batch for it. What the server and the clients compute does not count."""
    folder.mkdir()
    keys, names = set_up(folder, batch, 0)
    helper, identity = start_helper(folder, keys)
    server, version = own_identity(keys), {"model": torch.zeros(SIZE)}
    grid, algorithm = Grid(uploads=batch), FedBuff(staleness=Constant())
    start = digest_of_version(version)
    policy = Policy(
        run="busy", settings=to_json(algorithm, Local()), bits=BITS, largest=grid.largest, step=grid.step,
        vectors=(CodedVector(name="delta/codes", length=SIZE),), denominator=256, staleness=algorithm.law,
        batch=batch, least_clients=2, facts=Facts(population=batch, buffer=batch), start=start,
        helpers=(identity,), server=public_text(server),
    )  # fmt: skip
    signers = [Signer(name, read_key(keys / f"{name}.key")) for name in names]
    hidden = weighted_masks([(SEEDS[0], [batch * policy.denominator])], [SIZE], BITS)
    masked_digest = blake3(hidden.tobytes()).digest()
    authority = (folder / "helper-keys" / AUTHORITY).read_bytes()
    connection = HelperConnection(helper.address, server, authority)
    found = []
    try:
        await connection.greet("", b"", 0)
        await connection.begin(policy.to_bytes(), version)
        for number in range(1, 6 * rounds + 1):
            before = processor_seconds(helper.process.pid)
            deliveries = [
                delivery(policy, connection.key, signer, number * batch + place, number - 1)
                for place, signer in enumerate(signers)
            ]
            await connection.admit(deliveries, False)
            total = hidden - await connection.release(number, masked_digest, SIZE, BITS)
            assert not total.any(), "the codes are zeros"
            await connection.publish(number, start, total, version)
            found.append(1000 * (processor_seconds(helper.process.pid) - before) / batch)
    finally:
        await connection.close_channel()
        helper.stop()
    return [statistics.mean(found[first : first + 5]) for first in range(rounds, len(found), 5)]


def delivery(policy: Policy, key: v1.OfferedKey | None, signer: Signer, trip: int, version: int) -> bytes:
    """The signed header of an upload of zeros."""
    assert key is not None
    about = Purpose(policy.digest, policy.helpers[0], key.key_id, trip, version, signer.client, bytes(32))
    envelope = v1.Envelope(key_id=key.key_id, sealed=seal(SEEDS[0], key.public_key, about.info()))
    header = v1.UploadHeader(
        run=policy.run, trip=trip, version=version, digest=bytes(32), envelopes=[envelope]
    )
    return signer.sign("Deliver", header.SerializeToString()).SerializeToString()


def rows_of(results: dict[str, Any]) -> list[list[str]]:
    """The table: what, its ratio or number, its aim, and the figures behind it."""
    rates, wire = results["rates"], results["bytes"]
    spent = {name: statistics.median(of) for name, of in (results["costs"] | results["client"]).items()}
    busy = {int(batch): statistics.median(of) for batch, of in results["busy helper"].items()}
    ratio = statistics.median(one / other for one, other in zip(rates[MASKED], rates[GRID]))
    middle = {name: statistics.median(of) for name, of in rates.items()}
    extra = [
        "masks of one helper", "an envelope", "digest of the version", "the upload on the client's disk",
    ]  # fmt: skip
    return [
        ["what", "measured", "aim", "figures behind it (this machine only)"],
        ["masked uploads over plain ones on the grid, uploads/s", f"{ratio:.2f}", "0.8",
         f"{middle[MASKED]:.0f} over {middle[GRID]:.0f} uploads/s, {spent[MASKED]:.1f} and "
         f"{spent[GRID]:.1f} ms of the server's processor time"],
        *([f"trips a second that one core of a helper keeps up with, batches of {batch}",
           f"{1000 / cost:.0f}", "300", f"{cost:.2f} ms of processor time a trip"]
          for batch, cost in busy.items()),
        ["a helper's processor time for a trip in the run above, where uploads come one by one, ms",
         f"{spent['helper']:.1f}", "", f"batches of {BATCH}"],
        ["a client's additional work for a trip, ms", f"{sum(spent[name] for name in extra):.1f}", "10",
         "; ".join(f"{name} {spent[name]:.2f}" for name in results["client"])],
        ["bytes of the seed for one helper", f"{wire['classic']}", "80",
         f"{wire['classic, in a message']} in the message; {wire['hybrid']} with the hybrid key exchange, "
         f"{wire['hybrid, in a message']} in the message"],
    ]  # fmt: skip


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    said = sentence(results["machine"])
    return f"{table(rows_of(results))}\n\n*Rounds: {results['rounds']}. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=200, help="of one variant in one round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        client = client_costs(Path(folder) / "client", given.rounds)
        results = measure(Path(folder) / "run", given.rounds, given.uploads)
        busy = {
            batch: asyncio.run(busy_helper(Path(folder) / f"busy-{batch}", given.rounds, batch))
            for batch in (BATCH, LARGE_BATCH)
        }
    results |= {"busy helper": busy, "client": client, "bytes": wire_bytes()}
    results["machine"] = machine.description()
    results["rounds"] = given.rounds
    write("secure", results)
    print(part(results))


if __name__ == "__main__":
    main()
