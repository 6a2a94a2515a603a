"""Peak memory of a simulation, against how many clients are at work and how many there are.

    python benchmarks/memory.py
    python benchmarks/memory.py --case at-work --concurrency 1000 --workers 2 --trips 5000

Each case runs in a fresh process, with its workers; what they take together is read four times a second.
Memory that they share counts once in `mb`, which does not depend on what else runs. Training is as little as
can be (one step on two examples), so that thousands of trips take seconds. Linux only. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEGABYTE = 2**20
INTERVAL = 0.25  # reading costs some milliseconds a gigabyte
BUFFER = 10


@dataclass(frozen=True)
class Usage:
    """Bytes that processes take."""

    rss: int = 0
    """What each has in memory, added up: what they share counts for each of them."""
    pss: int = 0
    """What they share is divided among all who have it, other programs of the machine included."""
    own: int = 0
    """Data of theirs; what they share counts once."""
    files: int = 0
    """Libraries and mapped files, of the process that has most: they have the same ones."""

    @property
    def total(self) -> int:
        """All they take, shared memory counted once, whatever else runs on the machine."""
        return self.own + self.files

    def __add__(self, other: Usage) -> Usage:
        files = max(self.files, other.files)
        return Usage(self.rss + other.rss, self.pss + other.pss, self.own + other.own, files)


def usage(pid: int) -> Usage:
    """What one process takes; nothing if it is gone."""
    try:
        memory = _kilobytes(Path(f"/proc/{pid}/smaps_rollup")) | _kilobytes(Path(f"/proc/{pid}/status"))
    except OSError:
        return Usage()
    if "RssFile" not in memory:  # it has just ended
        return Usage()
    own = memory["Pss_Anon"] + memory["Pss_Shmem"]
    return Usage(1024 * memory["Rss"], 1024 * memory["Pss"], 1024 * own, 1024 * memory["RssFile"])


def _kilobytes(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].removesuffix(":"): int(words[1]) for words in lines if words[-1:] == ["kB"]}


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for t in threads for c in (t / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(each for child in children for each in family(child))]


# -- one case, in its own process ----------------------------------------------------------------------


def simulate(case: str, concurrency: int, population: int, workers: int, trips: int) -> dict[str, Any]:
    """Run a case; what it had before it began, and how many versions were alive at its end."""
    import torch
    from job import CLASSES, cnn
    from torch import nn

    import tardigrad as td
    from tardigrad.experiments.runs.simulation_assembly import build

    torch.set_num_threads(1)
    before = usage(os.getpid()).total
    at_work = case == "at-work"  # or a small model, and many clients
    config = td.Config(
        algorithm=td.FedBuff(),
        data=td.Synthetic(
            clients=population,
            examples=2,
            features=784 if at_work else 20,
            classes=CLASSES if at_work else 10,
        ),
        model=td.MLP(hidden=[32]),
        pace=td.Asynchronous(concurrency=concurrency),
        buffer=td.Buffer(size=BUFFER),
        local=td.Local(steps=1, batch_size=2, lr=0.001),
        stop=td.Stop(trips=10**9),
        evaluation=td.Evaluation(every_steps=10**9, examples=10),
    )
    model = nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *cnn()) if at_work else None
    simulation = build(config, model=model, workers=workers)
    done, events = 0, simulation.engine.run()
    while done < trips:
        done += sum(event.kind == "upload" for event in next(events))
    time.sleep(2 * INTERVAL)  # seen with all it has
    tensors, _ = simulation.engine.snapshot()
    versions = {name.split("/")[1] for name in tensors if name.startswith("broadcast/")}
    simulation.executor.close()
    return {
        "versions": len(versions),
        "model_mb": simulation.model.numel() * simulation.model.element_size() / MEGABYTE,
        "imports_mb": round(before / MEGABYTE),
    }


# -- watching cases ------------------------------------------------------------------------------------


def watch(case: str, concurrency: int, population: int, workers: int, trips: int) -> dict[str, Any]:
    """Run a case in a fresh process and note the most that it takes."""
    given = {"concurrency": concurrency, "population": population, "workers": workers, "trips": trips}
    print(f"memory, {case}: {given}", file=sys.stderr)
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--only-simulate", "--case", case, *options]
    rss = pss = most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            now = sum((usage(pid) for pid in family(process.pid)), Usage())
            rss, pss, most = max(rss, now.rss), max(pss, now.pss), max(most, now.total)
            time.sleep(INTERVAL)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode != 0:
        raise SystemExit(f"memory, {case}, {given}: it ended with code {process.returncode}")
    peaks = {"mb": most, "pss_mb": pss, "rss_mb": rss}
    return given | {name: round(peak / MEGABYTE) for name, peak in peaks.items()} | json.loads(output)


def measure(trips: int = 5000, quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """All cases, by what is varied."""
    at_work = [(c, w) for c in ((100, 1000) if quick else (100, 1000, 10_000)) for w in (0, 2)]
    populations = [10**3, 10**6] if quick else [10**3, 10**4, 10**5, 10**6]
    return {
        "concurrency": [watch("at-work", c, 20_000, w, trips) for c, w in at_work],
        "population": [watch("population", 100, p, w, trips) for p in populations for w in (0, 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", choices=["at-work", "population"], help="one case only")
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--population", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 trains in the engine's own")
    parser.add_argument("--trips", type=int, default=5000)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--only-simulate", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    case = (given.case, given.concurrency, given.population, given.workers, given.trips)
    if given.only_simulate:
        print(json.dumps(simulate(*case)))
        return
    if given.case:
        print(json.dumps(watch(*case)))
        return
    table = measure(given.trips, given.quick)
    print(f"{'at work':>10}{'clients':>10}{'workers':>10}{'versions':>10}{'MB':>10}{'PSS':>10}{'RSS':>10}")
    for row in table["concurrency"] + table["population"]:
        print(
            f"{row['concurrency']:10}{row['population']:10}{row['workers']:10}{row['versions']:10}"
            f"{row['mb']:10}{row['pss_mb']:10}{row['rss_mb']:10}"
        )
    print(json.dumps(table))


if __name__ == "__main__":
    main()
