"""Training in several processes on one machine, one thread each.

Workers are forked, so they have the data and the module without a copy. Versions and uploads pass through
shared memory, once; small messages go through pipes, several trips in one. Jobs are trained in the order in
which they will be committed, only so far ahead that nobody runs dry: what is kept for long is versions,
which many trips share, not uploads. A worker that dies or hangs is replaced and its jobs run again.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import RunError, TardigradError
from tardigrad.learning.local import Trainer
from tardigrad.learning.profile import Profile
from tardigrad.simulation.executor import Job
from tardigrad.simulation.processor_time import processor_seconds
from tardigrad.simulation.shared import Layout, Slots, packed_size

CHUNK_SECONDS = 0.005
"""Trips that take so long together go in one message."""
QUEUE_SECONDS = 0.05
"""So much work lies ready at each worker, for the engine is away that long when it evaluates."""
SILENCE_SECONDS = 45.0
"""A worker that says nothing for so long and uses no processor time meanwhile is taken to hang. One that
computes may take as long as it likes: so would the same trip without workers."""
IDLE_SHARE = 0.01
TRIES = 3
MOST_QUEUED = 128

Order = tuple[int, int, int, int, float | None, int, Layout, int, Layout]
"""trip, client, version, version slot, staleness, seed, version layout, upload slot, memory layout."""
Reply = tuple[int, Layout, Layout, int, int, float] | tuple[int, str]
"""trip, upload layout, memory layout, examples, steps, loss; or trip and what went wrong."""
Message = tuple[list[Reply], float, dict[str, float]]
"""Of a worker: its replies, how many seconds they took, and, if it is asked for, with what."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    jobs: dict[int, Job] = field(default_factory=dict)
    """Given to it, not answered, by trip."""
    heard: float = field(default_factory=time.monotonic)
    used: float = 0.0
    """Processor seconds when it was last heard, or found to be computing."""


class Processes:
    """Trains trips in worker processes."""

    def __init__(self, trainer: Trainer, clients: Clients, workers: int) -> None:
        self._trainer, self._clients = trainer, clients
        self.ahead = 4 * MOST_QUEUED * workers
        self._count = workers
        self._context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        self._versions: Slots | None = None
        self._published: dict[int, tuple[int, Layout]] = {}
        vector = trainer.flat.vector.numel() * trainer.flat.vector.element_size()
        self._memory_size = 4 * vector + 4096  # for memory that goes in; what comes out is behind it
        self._uploads = Slots(3 * self._memory_size, 8 * MOST_QUEUED * workers)
        self._upload_slots: dict[int, int] = {}
        self._ready: list[tuple[float, int]] = []  # (arrival, trip), not given to a worker yet
        self._jobs: dict[int, Job] = {}
        self._results: dict[int, tuple[Upload, Vectors] | str] = {}
        self._tries: dict[int, int] = {}
        self._last: int | None = None  # the trip whose slot the engine is done with at the next call
        self._seconds = 0.0  # of a mean trip
        self.profile = Profile()
        """What the workers do, all together."""

    # -- versions --------------------------------------------------------------------------------

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        if self._versions is None:
            self._versions = Slots(packed_size(vectors), 4096)
        slot = self._versions.take()
        if slot is None:
            raise RunError(
                f"{len(self._published)} versions are in use at once, which is more than shared memory "
                "has room for; set buffer.staleness_bound, or run with --workers 0"
            )
        layout = self._versions.pack(slot, vectors)
        assert layout is not None, "all versions have the same vectors"
        self._published[version] = (slot, layout)
        return self._versions.unpack(slot, layout)

    def withdraw(self, version: int) -> None:
        assert self._versions is not None
        slot, _ = self._published.pop(version)
        self._versions.give_back(slot)

    # -- jobs ------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        trip = job.task.trip
        self._jobs[trip] = job
        heapq.heappush(self._ready, (job.time, trip))

    def result(self, trip: int) -> tuple[Upload, Vectors]:
        if self._last is not None:
            self._uploads.give_back(self._upload_slots.pop(self._last))
            self._last = None
        if not (trip in self._results or trip in self._jobs or any(trip in w.jobs for w in self._workers)):
            raise KeyError(f"trip {trip} was never submitted")
        with self._trainer.profile.part("waiting for workers"):
            self._assign(needed=trip)
            while trip not in self._results:
                self._listen()
                self._assign(needed=trip)
        result = self._results.pop(trip)
        if isinstance(result, str):
            raise RunError(result)
        self._last = trip
        return result

    def _queue_length(self) -> int:
        """How many jobs a worker should have lying ready."""
        return max(2, min(MOST_QUEUED, int(QUEUE_SECONDS / self._seconds))) if self._seconds else 2

    def _assign(self, needed: int) -> None:
        """Give ready jobs to workers that run low, the earliest first."""
        if not self._workers:
            gc.freeze()  # what exists now is not looked at again by the workers' collectors
            self._workers = [self._start() for _ in range(self._count)]
        length = self._queue_length()
        chunk = max(1, min(length // 2, int(CHUNK_SECONDS / self._seconds))) if self._seconds else 1
        window = 3 * length * self._count  # trained and not committed, at most
        under_way = len(self._results) + sum(len(worker.jobs) for worker in self._workers)
        for worker in sorted(self._workers, key=lambda w: len(w.jobs)):
            room = length - len(worker.jobs)
            if room < chunk and needed not in self._jobs:
                continue
            batch: list[Job] = []
            while self._ready and len(batch) < room:
                trip = self._ready[0][1]
                if under_way >= window and trip != needed:
                    break
                heapq.heappop(self._ready)
                batch.append(self._jobs.pop(trip))
                under_way += 1
            self._send(worker, batch)

    def _send(self, worker: _Worker, batch: list[Job]) -> None:
        if not batch:
            return
        if not worker.jobs:
            worker.heard = time.monotonic()
        orders = [self._order(job) for job in batch]
        worker.jobs.update((job.task.trip, job) for job in batch)
        with contextlib.suppress(BrokenPipeError):  # it died: found out when it is listened to
            worker.pipe.send(orders)

    def _order(self, job: Job) -> Order:
        task = job.task
        slot = self._uploads.take()
        assert slot is not None, "the window is smaller than the number of slots"
        self._upload_slots[task.trip] = slot
        memory = self._uploads.pack(slot, job.memory)
        assert memory is not None, "a client remembers at most four vectors"
        version_slot, layout = self._published[task.version]
        assert isinstance(task.client, int)
        trip, client, version = task.trip, task.client, task.version
        return trip, client, version, version_slot, task.staleness, job.seed, layout, slot, memory

    # -- workers ---------------------------------------------------------------------------------

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._work, args=(theirs, ours), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _listen(self) -> None:
        """Wait until a worker has something to say, has died, or has been silent for too long."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), timeout=1.0):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                self._hear(worker, worker.pipe.recv())
            except (EOFError, OSError):
                self._replace(worker, "died")
        now = time.monotonic()
        for worker in self._workers:
            if worker.jobs and now - worker.heard > SILENCE_SECONDS:
                used = processor_seconds(worker.process.pid or 0)
                if used - worker.used < IDLE_SHARE * SILENCE_SECONDS:
                    self._replace(worker, f"hung for {SILENCE_SECONDS:.0f} seconds")
                else:
                    worker.heard, worker.used = now, used

    def _hear(self, worker: _Worker, message: Message) -> None:
        replies, seconds, profile = message
        worker.heard = time.monotonic()
        self.profile.add(profile)
        mean = seconds / len(replies)
        self._seconds = mean if not self._seconds else 0.8 * self._seconds + 0.2 * mean
        for reply in replies:
            self._take(worker, reply)

    def _take(self, worker: _Worker, reply: Reply) -> None:
        trip = reply[0]
        worker.jobs.pop(trip)
        if len(reply) == 2:
            self._results[trip] = reply[1]
            return
        _, upload_layout, memory_layout, examples, steps, loss = reply
        slot = self._upload_slots[trip]
        upload = Upload(self._uploads.unpack(slot, upload_layout), examples, steps, loss)
        memory = self._uploads.unpack(slot, memory_layout)
        self._results[trip] = (upload, {name: vector.clone() for name, vector in memory.items()})

    def _replace(self, worker: _Worker, what: str) -> None:
        """Start another worker; the jobs of the lost one are ready again."""
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(worker.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        worker.process.join()
        worker.pipe.close()
        for trip, job in worker.jobs.items():
            tries = self._tries[trip] = self._tries.get(trip, 0) + 1
            if tries >= TRIES:
                raise RunError(
                    f"a worker {what} {tries} times with trip {trip} of client {job.task.client} in hand "
                    f"(exit code {worker.process.exitcode}); run with --workers 0 to see why"
                )
            self._uploads.give_back(self._upload_slots.pop(trip))
            self.submit(job)
        self._workers[self._workers.index(worker)] = self._start()

    def _work(self, pipe: Connection, parents_end: Connection) -> None:
        """The life of a worker."""
        parents_end.close()
        for other in self._workers:  # inherited: or their end would never be noticed
            other.pipe.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's business
        torch.set_num_threads(1)
        profile = self._trainer.profile
        profile.restart()
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                orders = pipe.recv()
                replies: list[Reply] = []
                began = time.perf_counter()
                for order in orders:
                    replies.append(self._train(order))
                    seconds = time.perf_counter() - began
                    if seconds > CHUNK_SECONDS or order is orders[-1]:
                        pipe.send((replies, seconds, profile.take()))
                        replies, began = [], time.perf_counter()

    def _train(self, order: Order) -> Reply:
        trip, client, version, version_slot, staleness, seed, layout, slot, memory_layout = order
        assert self._versions is not None
        profile = self._trainer.profile
        task = Task(trip, client, version, self._versions.unpack(version_slot, layout), staleness)
        memory = self._uploads.unpack(slot, memory_layout)
        try:
            with profile.part("training"):
                with profile.part("data"):
                    examples = self._clients.indexed(client)
                upload, memory = self._trainer.train(task, memory, examples, seed)
        except TardigradError as error:
            return trip, str(error)
        except Exception as error:  # of the user's own model, data or rule
            return trip, f"trip {trip} of client {client}: {type(error).__name__}: {error}"
        with profile.part("upload"):
            remembered = self._uploads.pack(slot, memory, start=self._memory_size)
            sent = self._uploads.pack(slot, upload.vectors, start=2 * self._memory_size)
        if remembered is None or sent is None:
            return trip, f"trip {trip}: more than four vectors to upload or remember; run with --workers 0"
        return trip, sent, remembered, upload.examples, upload.steps, upload.loss

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        if self._workers:
            gc.unfreeze()
        self._workers = []
