"""Our trips per second over a bare PyTorch loop: the same minibatch steps, no federation at all.

    python benchmarks/speed.py --rounds 5
    python benchmarks/speed.py --rounds 5 --beside

1 worker trains in the engine's own process, 2 workers are that process and another; one thread each. The bare
loop has a process of its own, in which nothing is tuned. "2 bare loops" are two such processes, which know
nothing of each other: what two cores can do. The
variants take turns, several rounds, so that a noisy machine is noisy for all. Processor time is that of all
processes, for a trip; other work on the machine disturbs it less than the rate. With --beside there is one
more variant: two workers beside an engine that trains nothing, so three processes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from job import CLIENTS, EXAMPLES, JOBS, LR, Bare, Client, Job, trips_in
from report import TWICE, disturbance
from torch import nn

import tardigrad as td
from tardigrad.core.events import UploadReceived
from tardigrad.data.clients import Clients
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.freed_memory import keep_freed_memory
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors import choose
from tardigrad.simulation.executors.dispatch import Dispatcher
from tardigrad.simulation.executors.processes import FLOW, ForkedWorker, ForkedWorkers
from tardigrad.simulation.executors.processor_time import processor_seconds

CHARACTERS, LENGTH = 90, 20
WORKERS = {"1 worker": 0, "2 workers": 2}
BESIDE = "2 and engine"
"""Two workers, and an engine in a process of its own that trains nothing."""
SECONDS = 2.0
RUN_IN = 0.3
"""Seconds that are not counted each time: workers have work lying ready when they come back from a pause,
and must not be credited for it."""
SETTLE = 0.2
"""Seconds in which workers finish what they have, so that they do not disturb the next variant."""


class Turn(NamedTuple):
    """What one variant did in one round."""

    rate: float
    """Trips per second."""
    processor: float | None = None
    """Processor seconds of a trip, of all processes; None if they were not measured."""


Turns = dict[str, list[Turn]]
"""The turns of each variant, one a round."""


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

    def __init__(self, job: Job, data: Sequence[Client], workers: int, beside: bool = False) -> None:
        """`beside`: the workers are all beside the engine's process."""
        config = td.Config(
            algorithm=td.FedBuff(lr=1.0),
            pace=td.Asynchronous(concurrency=1000),
            buffer=td.Buffer(size=10),
            local=td.Local(batch_size=job.batch, lr=LR),
            stop=td.Stop(trips=10**9),
            evaluation=td.Evaluation(every_steps=10**9),
        )
        with mock.patch.object(choose, "process_executor", _beside if beside else choose.process_executor):
            self._simulation = build(
                config, model=job.model(), clients=dict(enumerate(data)), workers=workers
            )
        self._events = self._simulation.engine.run()
        self._workers = workers
        for _ in range(job.warm * max(1, workers)):
            self.trip()

    def trip(self) -> None:
        while not any(isinstance(event, UploadReceived) for event in next(self._events)):
            pass

    def __call__(self, seconds: float) -> Turn:
        before = self._processor()
        if not self._workers:
            trips, elapsed = trips_in(self.trip, seconds)
            return Turn(trips / elapsed, (self._processor() - before) / trips)
        first, _ = trips_in(self.trip, RUN_IN)
        trips, elapsed = trips_in(self.trip, seconds)
        time.sleep(SETTLE)  # workers are as far ahead now as they were in the beginning
        return Turn(trips / elapsed, (self._processor() - before) / (first + trips))

    def _processor(self) -> float:
        """Processor seconds of all processes so far."""
        workers = getattr(self._simulation.executor, "_workers", ())
        return time.process_time() + sum(processor_seconds(worker.pid) for worker in workers)

    def close(self) -> None:
        self._simulation.executor.close()


def _beside(trainer: Trainer, clients: Clients, workers: int) -> Dispatcher[ForkedWorker]:
    return Dispatcher(ForkedWorkers(trainer, clients, workers), workers, FLOW, trainer.profile)


class BareLoop:
    """The bare loop in a process of its own: plain PyTorch, with nothing of ours in it."""

    def __init__(self, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._line, there = spawn.Pipe()
        self._process = spawn.Process(target=_bare_elsewhere, args=(name, there), daemon=True)
        self._process.start()
        self._line.recv()  # it is warm

    def begin(self, seconds: float) -> None:
        self._line.send(seconds)

    def end(self) -> Turn:
        turn: Turn = self._line.recv()
        return turn

    def close(self) -> None:
        self._line.send(None)
        self._process.join()


def bare_turns(loops: Sequence[BareLoop], seconds: float) -> Turn:
    """One turn of bare loops that run at once and know nothing of each other."""
    for loop in loops:
        loop.begin(seconds)
    turns = [loop.end() for loop in loops]
    rate = sum(turn.rate for turn in turns)
    return Turn(rate, sum(turn.rate * (turn.processor or 0.0) for turn in turns) / rate)


def _bare_elsewhere(name: str, line: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = ALL_JOBS[name]
    bare = Bare(job, job.data())
    line.send("ready")
    while (seconds := line.recv()) is not None:
        line.send(bare_turn(bare, seconds))


def bare_turn(bare: Bare, seconds: float) -> Turn:
    """A turn of the bare loop in this process."""
    before = time.process_time()
    trips, elapsed = trips_in(bare.trip, seconds)
    return Turn(trips / elapsed, (time.process_time() - before) / trips)


def measure_job(
    name: str,
    job: Job,
    rounds: int,
    seconds: float,
    others: dict[str, Callable[[], float]] | None = None,
    beside: bool = False,
) -> Turns:
    """The bare loop, ours with 1 and 2 workers, and others, in turns of so many seconds."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    torch.manual_seed(0)
    data = job.data()
    ours = {variant: Ours(job, data, workers) for variant, workers in WORKERS.items()}
    if beside:
        ours[BESIDE] = Ours(job, data, 2, beside=True)
    loops = [BareLoop(name), BareLoop(name)]
    found: Turns = {variant: [] for variant in ("bare", TWICE, *ours, *(others or {}))}
    for turn in range(rounds):
        print(f"{name}: round {turn + 1} of {rounds}", file=sys.stderr)
        found["bare"].append(bare_turns(loops[:1], seconds))
        found[TWICE].append(bare_turns(loops, seconds))
        for variant, run in ours.items():
            found[variant].append(run(seconds))
        for variant, other in (others or {}).items():
            found[variant].append(Turn(other()))
    for run in (*loops, *ours.values()):
        run.close()
    return found


def summary(found: Turns) -> dict[str, dict[str, float]]:
    """Best and median of each variant, and their ratios to the bare loop: of the best to the best, and the
    median of neighbours in time. The same of processor time for a trip, where it was measured."""
    loop = [turn.rate for turn in found["bare"]]
    return {
        variant: {
            "best": round(max(rates), 1),
            "median": round(statistics.median(rates), 1),
            "ratio": round(max(rates) / max(loop), 3),
            "median_ratio": round(statistics.median(one / other for one, other in zip(rates, loop)), 3),
        }
        | _processor_summary(turns, found["bare"])
        for variant, turns in found.items()
        for rates in [[turn.rate for turn in turns]]
    }


def _processor_summary(turns: Sequence[Turn], loop: Sequence[Turn]) -> dict[str, float]:
    """Milliseconds for a trip, the median, and the median of the ratios to the bare loop's."""
    costs = [turn.processor for turn in turns if turn.processor is not None]
    bare = [turn.processor for turn in loop if turn.processor is not None]
    if not costs:
        return {}
    ratio = statistics.median(one / other for one, other in zip(costs, bare))
    return {
        "processor_ms": round(1000 * statistics.median(costs), 4),
        "processor_ratio": round(ratio, 3),
    }


def measure(
    rounds: int, seconds: float = SECONDS, jobs: Iterable[str] = tuple(ALL_JOBS), beside: bool = False
) -> dict[str, Any]:
    """Trips per second and ratios, by job and variant.

    >>> measure(5)["MLP, batch 50"]["2 workers"]["ratio"]  # doctest: +SKIP
    """
    return {name: summary(measure_job(name, ALL_JOBS[name], rounds, seconds, beside=beside)) for name in jobs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each variant in a round")
    parser.add_argument("--job", action="append", choices=list(ALL_JOBS), help="only this one (may repeat)")
    parser.add_argument("--beside", action="store_true", help="also two workers beside an idle engine")
    given = parser.parse_args()
    table = measure(given.rounds, given.seconds, given.job or ALL_JOBS, given.beside)
    print(f"{'':16}{'':14}{'trips/s':^20}{'over the bare loop':^20}{'processor time':^20}")
    print(
        f"{'job':16}{'variant':14}{'best':>10}{'median':>10}{'best':>10}{'median':>10}{'ms/trip':>10}{'ratio':>10}"
    )
    for job, variants in table.items():
        for variant, row in variants.items():
            print(
                f"{job:16}{variant:14}{row['best']:10.1f}{row['median']:10.1f}"
                f"{row['ratio']:10.2f}{row['median_ratio']:10.2f}"
                f"{row['processor_ms']:10.3f}{row['processor_ratio']:10.2f}"
            )
    if reason := disturbance(table):
        print(reason)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
