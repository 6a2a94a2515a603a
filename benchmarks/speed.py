"""Our trips per second over a bare PyTorch loop: the same minibatch steps, no federation at all.

    python benchmarks/speed.py --rounds 5

1 worker trains in the engine's own process, 2 workers are two processes beside it; one thread each. "2 bare
loops" are two processes with a bare loop each, which know nothing of each other: what two cores can do. The
variants take turns, several rounds, so that a noisy machine is noisy for all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from job import CLIENTS, EXAMPLES, JOBS, LR, Bare, Client, Job, trips_per_second
from torch import nn

import tardigrad as td
from tardigrad.core.events import UploadReceived
from tardigrad.experiments.runs.simulation_assembly import build

CHARACTERS, LENGTH = 90, 20
TWICE = "2 bare loops"
WORKERS = {"1 worker": 0, "2 workers": 2}
SECONDS = 2.0
RUN_IN = 0.3
"""Seconds that are not counted each time: workers have work lying ready when they come back from a pause,
and must not be credited for it."""
SETTLE = 0.2
"""Seconds in which workers finish what they have, so that they do not disturb the next variant."""

Rates = dict[str, list[float]]
"""Trips per second of each variant, a number a round."""


def lstm() -> nn.Module:
    """0.82 million parameters."""
    return td.CharLSTM().build((LENGTH,), CHARACTERS)


def texts() -> list[Client]:
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.randint(CHARACTERS, (EXAMPLES, LENGTH), generator=random),
            torch.randint(CHARACTERS, (EXAMPLES,), generator=random),
        )
        for _ in range(CLIENTS)
    ]


ALL_JOBS = JOBS | {"LSTM, batch 10": Job(lstm, texts, 10, warm=4)}


class Ours:
    """A simulation that is warmed up and then driven for some trips at a time."""

    def __init__(self, job: Job, data: Sequence[Client], workers: int) -> None:
        config = td.Config(
            algorithm=td.FedBuff(lr=1.0),
            pace=td.Asynchronous(concurrency=1000),
            buffer=td.Buffer(size=10),
            local=td.Local(batch_size=job.batch, lr=LR),
            stop=td.Stop(trips=10**9),
            evaluation=td.Evaluation(every_steps=10**9),
        )
        self._simulation = build(config, model=job.model(), clients=dict(enumerate(data)), workers=workers)
        self._events = self._simulation.engine.run()
        self._workers = workers
        for _ in range(job.warm * max(1, workers)):
            self.trip()

    def trip(self) -> None:
        while not any(isinstance(event, UploadReceived) for event in next(self._events)):
            pass

    def __call__(self, seconds: float) -> float:
        """Trips per second."""
        if not self._workers:
            return trips_per_second(self.trip, seconds)
        trips_per_second(self.trip, RUN_IN)
        rate = trips_per_second(self.trip, seconds)
        time.sleep(SETTLE)
        return rate

    def close(self) -> None:
        self._simulation.executor.close()


class TwoBare:
    """The bare loop in two processes at once: what the machine gives to those who have nothing to share."""

    def __init__(self, name: str, bare: Bare) -> None:
        self._bare = bare
        spawn = multiprocessing.get_context("spawn")
        self._line, there = spawn.Pipe()
        self._other = spawn.Process(target=_bare_elsewhere, args=(name, there), daemon=True)
        self._other.start()
        self._line.recv()  # it is warm

    def __call__(self, seconds: float) -> float:
        """Trips per second of both."""
        self._line.send(seconds)
        own = self._bare(seconds)
        return own + float(self._line.recv())

    def close(self) -> None:
        self._line.send(None)
        self._other.join()


def _bare_elsewhere(name: str, line: Any) -> None:
    torch.set_num_threads(1)
    job = ALL_JOBS[name]
    bare = Bare(job, job.data())
    line.send("ready")
    while (seconds := line.recv()) is not None:
        line.send(bare(seconds))


def rates(
    name: str, job: Job, rounds: int, seconds: float, others: dict[str, Callable[[], float]] | None = None
) -> Rates:
    """The bare loop, ours with 1 and 2 workers, and others, in turns of so many seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = job.data()
    ours = {variant: Ours(job, data, workers) for variant, workers in WORKERS.items()}
    bare = Bare(job, data)
    two = TwoBare(name, bare)
    found: Rates = {variant: [] for variant in ("bare", TWICE, *ours, *(others or {}))}
    for turn in range(rounds):
        print(f"{name}: round {turn + 1} of {rounds}", file=sys.stderr)
        found["bare"].append(bare(seconds))
        found[TWICE].append(two(seconds))
        for variant, run in ours.items():
            found[variant].append(run(seconds))
        for variant, other in (others or {}).items():
            found[variant].append(other())
    for run in (two, *ours.values()):
        run.close()
    return found


def summary(found: Rates) -> dict[str, dict[str, float]]:
    """Best and median of each variant, and their ratios to the bare loop: of the best to the best, and the
    median of neighbours in time."""
    loop = found["bare"]
    return {
        variant: {
            "best": round(max(each), 1),
            "median": round(statistics.median(each), 1),
            "ratio": round(max(each) / max(loop), 3),
            "median_ratio": round(statistics.median(one / other for one, other in zip(each, loop)), 3),
        }
        for variant, each in found.items()
    }


def measure(rounds: int, seconds: float = SECONDS, jobs: Iterable[str] = tuple(ALL_JOBS)) -> dict[str, Any]:
    """Trips per second and ratios, by job and variant.

    >>> measure(5)["MLP, batch 50"]["2 workers"]["ratio"]  # doctest: +SKIP
    """
    return {name: summary(rates(name, ALL_JOBS[name], rounds, seconds)) for name in jobs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each variant in a round")
    parser.add_argument("--job", action="append", choices=list(ALL_JOBS), help="only this one (may repeat)")
    given = parser.parse_args()
    table = measure(given.rounds, given.seconds, given.job or ALL_JOBS)
    print(f"{'':16}{'':14}{'trips/s':^20}{'over the bare loop':^20}")
    print(f"{'job':16}{'variant':14}{'best':>10}{'median':>10}{'best':>10}{'median':>10}")
    for job, variants in table.items():
        for variant, row in variants.items():
            print(
                f"{job:16}{variant:14}{row['best']:10.1f}{row['median']:10.1f}"
                f"{row['ratio']:10.2f}{row['median_ratio']:10.2f}"
            )
    print(json.dumps(table))


if __name__ == "__main__":
    main()
