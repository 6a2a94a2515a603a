"""Where the server's processor time for an upload of 4 MB goes, part by part.

    python benchmarks/service_parts.py --rounds 5

The same clients and servers as in service.py, in turns. In our servers the functions of each part are
wrapped, and their processor time is counted on the thread that runs them, without that of parts inside. The
threads' own times come from the kernel. Processor time depends less on other work on the machine than a rate.
Results: benchmarks/service_parts.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from report import Machine, Quiet, sentence, table

from service import BARE, BARE_TLS, OURS, SAFE, Crew, Ours, bare_process, set_up

WHERE = "TARDIGRAD_PARTS"
"""The environment variable with the file that a server writes its parts to, when it gets SIGUSR1."""
LOOP, GRPC, OTHER = "event loop and gRPC's part in it", "gRPC's own threads", "other Python threads"
PARTS = (
    "signature", "copy", "digest", "norm and finite check", "write and sync", "journal", "bookkeeping",
    "apply to the model and step",
)  # fmt: skip


class Stopwatch:
    """Counts the processor time of wrapped functions."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.in_loop = 0.0
        """Seconds of all parts on the main thread, which runs the event loop."""
        self._inside = threading.local()

    def wrap(self, part: str, owner: Any, name: str) -> None:
        """Count the time of a function as that of a part."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            outer = getattr(self._inside, "seconds", 0.0)
            self._inside.seconds, began = 0.0, time.thread_time()
            try:
                return function(*given, **named)
            finally:
                whole = time.thread_time() - began
                self.spent[part] += whole - self._inside.seconds
                if threading.current_thread() is threading.main_thread():
                    self.in_loop += whole - self._inside.seconds
                self._inside.seconds = outer + whole

        setattr(owner, name, timed)

    def parts(self) -> dict[str, float]:
        """Seconds so far, by part."""
        own = threads_of(os.getpid())
        rest = own["python"] - (sum(self.spent.values()) - self.in_loop)
        return {**self.spent, LOOP: own["loop"] - self.in_loop, OTHER: rest, GRPC: own["grpc"]}


def threads_of(pid: int) -> dict[str, float]:
    """Seconds of processor time of a process's threads, by kind; gRPC names its own."""
    spent = {"loop": 0.0, "python": 0.0, "grpc": 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        main, named = task.name == str(pid), (task / "comm").read_text().startswith("python")
        spent["loop" if main else "python" if named else "grpc"] += seconds
    return spent


def serve_wrapped(arguments: list[str]) -> None:
    """Be `tardigrad serve` with a stopwatch."""
    from tardigrad.cli.command import main
    from tardigrad.service.access.signed_requests import RequestVerifier
    from tardigrad.service.server import upload_body, upload_reception
    from tardigrad.service.server.coordinator import Coordinator
    from tardigrad.service.server.journal_queue import JournalQueue
    from tardigrad.service.server.model_thread import ModelThread
    from tardigrad.service.store.upload_files import UploadFiles

    watch = Stopwatch()

    class Digest:
        """BLAKE3, whose own methods cannot be wrapped."""

        def __init__(self) -> None:
            self._digest = blake3()
            self.update, self.digest = self._digest.update, self._digest.digest
            watch.wrap("digest", self, "update")

    blake3 = upload_body.blake3
    upload_body.blake3 = Digest
    signature, copy, _, norm, write, journal, bookkeeping, model = PARTS
    watch.wrap(signature, RequestVerifier, "_check_claim")
    watch.wrap(copy, upload_body.BodyInMemory, "put")
    watch.wrap(norm, upload_reception, "check_body")
    watch.wrap(write, UploadFiles, "_write")
    watch.wrap(journal, JournalQueue, "_append")
    watch.wrap(bookkeeping, Coordinator, "_apply")
    watch.wrap(model, ModelThread, "_apply_batch")

    def tell(*_: Any) -> None:
        partial = Path(os.environ[WHERE] + ".partial")
        partial.write_text(json.dumps(watch.parts()))
        partial.rename(os.environ[WHERE])

    signal.signal(signal.SIGUSR1, tell)
    sys.argv = ["tardigrad", *arguments]
    main()


class Wrapped(Ours):
    """Our server with a stopwatch."""

    command = (sys.executable, __file__)

    def parts(self) -> dict[str, float]:
        """Seconds so far, by part."""
        file = Path(os.environ[WHERE])
        file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not file.exists():
            time.sleep(0.01)
        return dict(json.loads(file.read_text()))


def measure(folder: Path, rounds: int, uploads: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds for an upload, by server and part, one for each round."""
    os.environ[WHERE] = str(folder / "parts.json")
    keys, names = set_up(folder, uploads, 0)
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        crews = {secure: Crew(secure, keys, names) for secure in (False, True)}
        servers: dict[str, tuple[str, bool, Callable[[], dict[str, float]]]] = {}
        for secure, bare, ours in ((False, BARE, OURS), (True, BARE_TLS, SAFE)):
            stack.callback(crews[secure].stop)
            here, there = context.Pipe()
            process = context.Process(
                target=bare_process, args=(there, keys if secure else None), daemon=True
            )
            process.start()
            stack.callback(here.send, None)
            pid = int(process.pid or 0)
            servers[bare] = str(here.recv()), False, lambda pid=pid: threads_of(pid)
            wrapped = Wrapped(folder, keys, *(() if secure else ("--insecure", "--no-durability")))
            stack.callback(wrapped.stop)
            servers[ours] = wrapped.address, True, wrapped.parts
        for number in range(-1, rounds):  # the first round warms up
            for name, (address, ours_too, parts) in servers.items():
                crew = crews[name in (BARE_TLS, SAFE)]
                crew.prepare(address, ours_too)
                before = parts()
                crew.go(address, ours_too)
                after = parts()
                used = {part: 1000 * (after[part] - before.get(part, 0.0)) / uploads for part in after}
                print(f"{number} {name}: {sum(used.values()):.2f} ms", file=sys.stderr)
                for part, spent in used.items() if number >= 0 else ():
                    found.setdefault(name, {}).setdefault(part, []).append(spent)
    return found


def rows_of(found: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """The table: parts, and milliseconds without and with TLS and durability."""
    ours = {name: {part: statistics.median(of) for part, of in found[name].items()} for name in (OURS, SAFE)}
    sums = {name: [sum(each) for each in zip(*of.values())] for name, of in found.items()}
    rows = [["part of an upload of 4 MB, ms of processor time", OURS, SAFE]]
    for part in (LOOP, GRPC, *PARTS, OTHER):
        rows.append([part, *(f"{ours[name].get(part, 0.0):.2f}" for name in (OURS, SAFE))])
    rows.append(["all of it", *(f"{statistics.median(sums[name]):.2f}" for name in (OURS, SAFE))])
    rows.append(["the bare server", *(f"{statistics.median(sums[name]):.2f}" for name in (BARE, BARE_TLS))])
    ratios = [
        statistics.median(one / other for one, other in zip(sums[name], sums[bare]))
        for name, bare in ((OURS, BARE), (SAFE, BARE_TLS))
    ]
    rows.append(["ratio (aims: 1.25 and 1.5)", *(f"{ratio:.2f}" for ratio in ratios)])
    return rows


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    said = sentence(results["machine"], checked=True)
    return f"{table(rows_of(results['ms']))}\n\n*Rounds: {results['rounds']}. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=120, help="of one server in one round")
    given = parser.parse_args()
    machine, quiet = Machine(), Quiet()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.rounds, given.uploads)
    results: dict[str, Any] = {"ms": found, "machine": machine.description()}
    results["rounds"] = given.rounds
    print(part(results))
    quiet.write("service_parts", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_wrapped(sys.argv[1:])
    else:
        main()
