"""What crosses the network when Ray trains on several nodes, with a network of limited bandwidth.

    sudo .venv/bin/python benchmarks/ray_nodes.py
    sudo .venv/bin/python benchmarks/ray_nodes.py --mbits 1000 --nodes 2 --hidden 1100 --algorithm scaffold

Each node is a network namespace of this machine with a virtual cable to one bridge, and its own Ray with its
own object store. The head has no CPUs for workers, so everything that is trained crosses the network. Both
directions of every cable have the bandwidth that is asked for (`tc tbf`). Needs Linux, root and iproute2.

The counters of the cables are read twice, after a quarter of the steps and after three quarters. Bytes and
processor seconds per trip are those in between. Bytes do not depend on what else the machine does. Processor
seconds do, by a factor of two or three, and trips per second, unless the network is the limit. The keys
that end in "_model" are what docs/scaling.md says: an upload to the head for each trip, and each version to
each node once. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PORT = 6379
STORE = 1 << 30
CLIENTS, EXAMPLES, PIXELS, CLASSES = 100, 40, 784, 10
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {"ray::": "workers", "raylet": "raylet", "gcs_server": "GCS", "--job": "engine"}
"""Processes by a part of their command line, the first that fits."""


# -- the job, which runs on the head ---------------------------------------------------------------


class Marks:
    """An observer that says when some versions were made, and waits until the counters were read."""

    def __init__(self, versions: Sequence[int]) -> None:
        self._versions = set(versions)

    def begin(self, config: object, history: object) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def see(self, events: Sequence[Any]) -> None:
        """Announce the versions among these events."""
        for event in events:
            if event.kind == "step" and event.version in self._versions:
                print("mark", event.trips, flush=True)
                sys.stdin.readline()


def job(options: argparse.Namespace) -> None:
    """Run FedBuff or SCAFFOLD on the cluster, on examples of noise."""
    import torch

    import tardigrad as td
    from tardigrad.simulation.executors.ray import session, workers

    session.JOIN_SECONDS, workers.START_SECONDS = 300, 300.0  # a busy machine may be slow
    random = torch.Generator().manual_seed(0)
    clients = {
        f"client {i}": (
            torch.randn(EXAMPLES, PIXELS, generator=random),
            torch.randint(CLASSES, (EXAMPLES,), generator=random),
        )
        for i in range(CLIENTS)
    }
    torch.manual_seed(0)
    hidden = options.hidden[0]
    model = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
    )
    buffer = options.buffer[0]
    steps = options.trips // buffer
    algorithm, pace = td.FedBuff(), td.Asynchronous(concurrency=options.concurrency)
    if options.algorithm == "scaffold":  # in rounds, and clients keep a control variate
        algorithm, pace = td.SCAFFOLD(), td.Synchronous(cohort=buffer)
    td.run(
        model=model, clients=clients, test=clients["client 0"],
        algorithm=algorithm, pace=pace, buffer=td.Buffer(size=None if pace.kind == "synchronous" else buffer),
        local=td.Local(batch_size=10, lr=0.01), stop=td.Stop(trips=options.trips),
        evaluation=td.Evaluation(every_steps=steps), workers=f"ray:{options.address}",
        observers=(Marks((steps // 4, steps * 3 // 4)),),
    )  # fmt: skip


# -- nodes and cables ------------------------------------------------------------------------------


def sh(*command: object, **options: Any) -> str:
    """Run a command and return what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Net:
    """Namespaces on one bridge. The first is the head's."""

    def __init__(self, nodes: int, mbits: int) -> None:
        mark = secrets.token_hex(3)
        self._bridge = f"tg{mark}"
        self.names = [f"tg{mark}-{i}" for i in range(nodes + 1)]
        self._mbits = mbits

    def __enter__(self) -> Net:
        try:
            sh("ip", "link", "add", self._bridge, "type", "bridge")
            sh("ip", "link", "set", self._bridge, "up")
            for i, name in enumerate(self.names):
                inside = ("ip", "-n", name)
                sh("ip", "netns", "add", name)
                sh("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
                sh("ip", "link", "set", name, "master", self._bridge, "up")
                sh(*inside, "addr", "add", f"{address(i)}/24", "dev", "eth0")
                sh(*inside, "link", "set", "eth0", "up")
                sh(*inside, "link", "set", "lo", "up")
                sh(*inside, "route", "add", "default", "dev", "eth0")  # Ray asks which address it has
                limit = ("root", "tbf", "rate", f"{self._mbits}mbit", "burst", "256kb", "latency", "50ms")
                sh("tc", "qdisc", "add", "dev", name, *limit)
                sh("tc", "-n", name, "qdisc", "add", "dev", "eth0", *limit)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            for pid in self._pids(name):
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)

    def _pids(self, name: str) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def received(self) -> list[int]:
        """Return the bytes that the head and each node have received."""
        return [self._counter(name, "tx_bytes") for name in self.names]  # the bridge sends, they receive

    def sent(self) -> list[int]:
        """Return the bytes that the head and each node have sent."""
        return [self._counter(name, "rx_bytes") for name in self.names]

    def _counter(self, name: str, counter: str) -> int:
        return int(Path(f"/sys/class/net/{name}/statistics/{counter}").read_text())

    def processor_seconds(self) -> Counter[str]:
        """Return the processor seconds of all processes by kind, those of the head and of the nodes apart."""
        found: Counter[str] = Counter()
        for i, name in enumerate(self.names):
            for pid in self._pids(name):
                with contextlib.suppress(OSError):  # it has just ended
                    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                    kind = next((kind for part, kind in KINDS.items() if part in words), "other")
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    where = "nodes" if i else "head"
                    found[f"{where}: {kind}"] += (int(fields[11]) + int(fields[12])) / TICKS
        return found


def address(i: int) -> str:
    """Return the address of the head (0) or a node."""
    return f"10.77.0.{i + 1}"


@contextlib.contextmanager
def cluster(nodes: int, mbits: int) -> Iterator[tuple[Net, dict[str, str]]]:
    """Start a cluster, and yield its network and the environment of its processes."""
    ray = str(Path(sys.executable).parent / "ray")
    environment = os.environ | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",  # Ray's 15 would leave them no time on a busy machine
    }  # fmt: skip
    folder = tempfile.TemporaryDirectory(prefix="tg", ignore_cleanup_errors=True)
    with folder, Net(nodes, mbits) as net:
        for i, name in enumerate(net.names):
            role = [f"--address={address(0)}:{PORT}", "--num-cpus=1"]
            if i == 0:
                role = ["--head", f"--port={PORT}", "--num-cpus=0", f"--temp-dir={folder.name}"]
                role += ["--include-dashboard=false"]
            sh(
                "ip", "netns", "exec", name, ray, "start", *role, f"--node-ip-address={address(i)}",
                f"--object-store-memory={STORE}", "--disable-usage-stats", env=environment,
            )  # fmt: skip
        yield net, environment


# -- measuring -------------------------------------------------------------------------------------


def measured(options: argparse.Namespace, nodes: int, mbits: int, hidden: int, buffer: int) -> dict[str, Any]:
    """Run the job on a new cluster and return what it took, next to what the model says."""
    words = ["--job", "--hidden", hidden, "--buffer", buffer, "--trips", options.trips]
    words += ["--algorithm", options.algorithm, "--concurrency", options.concurrency]
    words += ["--address", f"{address(0)}:{PORT}"]
    with cluster(nodes, mbits) as (net, environment):
        command = ["ip", "netns", "exec", net.names[0], sys.executable, __file__, *map(str, words)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        marks = []
        for line in process.stdout:
            if line.startswith("mark "):
                now = time.monotonic()
                marks.append((int(line.split()[1]), now, net.received(), net.sent(), net.processor_seconds()))
                process.stdin.write("\n")
                process.stdin.flush()
        if process.wait():
            raise SystemExit("the job failed")
    (trips, began, *before, used), (end_trips, end, *after, end_used) = marks
    trips = end_trips - trips
    (head_in, *node_in), (head_out, *_) = (
        [(b - a) / trips for a, b in zip(old, new)] for old, new in zip(before, after)
    )
    parameters = (PIXELS + 1) * hidden + (hidden + 1) * CLASSES
    vectors = {"fedbuff": 1, "scaffold": 2}[options.algorithm]
    version = upload = 4 * parameters * vectors
    memory = 4 * parameters if options.algorithm == "scaffold" else 0
    to_head = upload + memory
    from_head = min(nodes, buffer) * version / buffer + memory
    return {
        "nodes": nodes, "mbits": mbits, "parameters": parameters, "buffer": buffer,
        "algorithm": options.algorithm, "trips": trips,
        "to_head": round(head_in), "to_head_model": to_head,
        "from_head": round(head_out), "to_nodes": round(sum(node_in)), "to_nodes_model": round(from_head),
        "between_nodes": round(sum(node_in) - head_out),
        "per_second": round(trips / (end - began), 2),
        "network_limit": round(mbits * 125_000 / max(to_head, from_head), 2),
        "first_mark_to_nodes": [round(b / 1e6, 2) for b in before[0][1:]],
        "processor_ms": {k: round(1000 * v / trips, 2) for k, v in sorted((end_used - used).items())},
    }  # fmt: skip


def main() -> None:
    """Measure all combinations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2], help="besides the head")
    parser.add_argument("--mbits", type=int, nargs="+", default=[100, 1000], help="bandwidth of each cable")
    parser.add_argument("--hidden", type=int, nargs="+", default=[200], help="width of the model")
    parser.add_argument("--buffer", type=int, nargs="+", default=[10])
    parser.add_argument("--algorithm", choices=("fedbuff", "scaffold"), default="fedbuff")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--trips", type=int, default=800)
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    if os.geteuid():
        raise SystemExit("network namespaces need root: start this with sudo")
    found = []
    for case in itertools.product(options.nodes, options.mbits, options.hidden, options.buffer):
        found.append(measured(options, *case))
        print(found[-1], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
