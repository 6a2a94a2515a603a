"""Sending jobs to workers: which job goes where and when, and what happens when a worker is lost.

Jobs are sent in the order in which they will be committed, and only so far ahead that no worker runs out of
work, so that few uploads have to be kept until they are committed. Several short trips go in one message. A
worker that dies or hangs is replaced and its jobs are trained again.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from typing import Generic

from tardigrad.core.upload import Vectors
from tardigrad.errors import RunError
from tardigrad.learning.profile import Profile
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob
from tardigrad.simulation.executors.worker_pool import (
    MOST_TRIPS,
    BatchReport,
    Failure,
    Flow,
    Lost,
    W,
    WorkerPool,
)

BATCHES = 2
"""The fewest batches at each worker: one that it trains and one that waits."""
PLANNED_AHEAD = 4 * BATCHES * MOST_TRIPS
"""Uploads to plan ahead for each worker."""
LISTEN_SECONDS = 1.0
SILENCE_SECONDS = 45.0
"""A worker that sends nothing for this long and uses no processor time meanwhile is considered to hang. One
that computes may take as long as it needs, because the same trip would without workers."""
IDLE_SHARE = 0.01
"""A worker that used less than this share of a processor is considered to have used none."""
TRIES = 3
"""How many workers a trip may lose before the run fails."""


class Dispatcher(Generic[W]):
    """An executor that trains jobs on the workers of a pool."""

    _fewest = BATCHES
    """How many jobs a worker has in hand at least, if there are enough for all."""

    def __init__(self, pool: WorkerPool[W], workers: int, flow: Flow, profile: Profile) -> None:
        self.ahead = PLANNED_AHEAD * workers
        self._pool, self._count, self._flow = pool, workers, flow
        self._own_profile, self._profile = profile, Profile()
        self._workers: list[W] = []
        self._ready: list[tuple[float, int]] = []  # heap of (arrival, trip): jobs that were not sent yet
        self._jobs: dict[int, TrainingJob] = {}  # the same jobs by trip
        self._in_hand = 0  # jobs that were sent and not answered
        self._results: dict[int, TrainedTrip | Failure] = {}
        self._tries: dict[int, int] = {}  # by trip, how many workers were lost while they trained it
        self._seconds = 0.0  # running mean of the duration of a trip
        self._last: int | None = None  # the trip whose result is released at the next call

    def start(self) -> None:
        """Start the workers, unless they have been started. Otherwise the first request does it."""
        while len(self._workers) < self._count:
            self._workers.append(self._pool.start())

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        return self._pool.publish(version, vectors)

    def withdraw(self, version: int) -> None:
        self._pool.withdraw(version)

    def submit(self, job: TrainingJob) -> None:
        self._jobs[job.task.trip] = job
        heapq.heappush(self._ready, (job.time, job.task.trip))

    def result(self, trip: int) -> TrainedTrip:
        if self._last is not None:
            self._pool.release(self._last)
            self._last = None
        if not (trip in self._results or trip in self._jobs or self._was_sent(trip)):
            raise KeyError(f"trip {trip} was never submitted")
        with self._own_profile.part("waiting for workers"):
            self.start()
            self._obtain(trip)
        result = self._results.pop(trip)
        if isinstance(result, Failure):
            raise RunError(result.message)
        self._last = trip
        return result

    def _obtain(self, trip: int) -> None:
        """Send jobs and receive results until that of this trip is there."""
        self._assign(needed=trip)
        while trip not in self._results:
            self._listen()
            self._assign(needed=trip)

    def profile(self) -> dict[str, float]:
        return dict(self._profile.seconds)

    def close(self) -> None:
        workers, self._workers = self._workers, []
        self._pool.close(workers)
        self._ready.clear()
        self._jobs.clear()
        self._results.clear()
        self._in_hand, self._last = 0, None

    def _was_sent(self, trip: int) -> bool:
        return any(trip in batch for worker in self._workers for batch in worker.batches)

    # -- sending ---------------------------------------------------------------------------------

    def _assign(self, needed: int) -> None:
        """Send jobs to the workers that have the fewest in hand, the earliest job first."""
        workers = [worker for worker in self._workers if worker.ready and not self._holds_suspect(worker)]
        if not self._ready or not workers:
            return
        size, queue = self._sizes(len(workers))
        window = self._window(queue, len(workers))
        while self._ready:
            worker = min(workers, key=lambda worker: worker.in_hand)
            room = queue - worker.in_hand
            full = min(room, len(self._ready)) >= size
            if room <= 0 or (worker.in_hand and not full and needed not in self._jobs):
                return  # it can wait until there is a full batch for it
            suspect = self._ready[0][1] in self._tries
            if suspect and worker.in_hand:
                return  # it goes to a worker that has nothing else in hand
            batch = self._take(min(room, size), window, needed)
            if not batch:
                return
            self._send(worker, batch)
            if suspect:
                workers.remove(worker)
                if not workers:
                    return

    def _holds_suspect(self, worker: W) -> bool:
        """Return whether a worker trains a job that has lost another worker. It gets no other job meanwhile:
        if it is lost too, that job is the reason, even if earlier answers were lost with the worker."""
        return bool(self._tries) and any(trip in self._tries for batch in worker.batches for trip in batch)

    def _window(self, queue: int, workers: int) -> int:
        """Return how many jobs may be sent or trained and not committed, if so many workers have so many jobs
        in hand."""
        return 3 * queue * workers

    def _sizes(self, workers: int) -> tuple[int, int]:
        """Return how many jobs go in one batch, and how many a worker should have in hand."""
        if not self._seconds:
            return 1, BATCHES
        flow = self._flow
        share = math.ceil((len(self._ready) + self._in_hand) / workers)
        wanted = max(self._fewest, int(flow.queue_seconds / self._seconds))
        queue = max(1, min(wanted, BATCHES * flow.most_trips, share))
        size = min(int(flow.batch_seconds / self._seconds), queue // BATCHES, flow.most_trips)
        return max(1, size), queue

    def _take(self, size: int, window: int, needed: int) -> list[TrainingJob]:
        """Remove a batch of the earliest jobs from the heap. A job that has lost a worker goes alone."""
        batch: list[TrainingJob] = []
        while self._ready and len(batch) < size:
            trip = self._ready[0][1]
            if len(self._results) + self._in_hand + len(batch) >= window and trip != needed:
                break
            suspect = trip in self._tries
            if suspect and batch:
                break
            heapq.heappop(self._ready)
            batch.append(self._jobs.pop(trip))
            if suspect:
                break
        return batch

    def _send(self, worker: W, batch: list[TrainingJob]) -> None:
        if not worker.in_hand:
            worker.silent = 0.0
        self._pool.send(worker, batch)
        worker.batches.append({job.task.trip: job for job in batch})
        worker.in_hand += len(batch)
        self._in_hand += len(batch)

    # -- listening -------------------------------------------------------------------------------

    def _listen(self, seconds: float = LISTEN_SECONDS) -> bool:
        """Wait for messages, and replace the workers that have died or hang. Return whether there were
        messages."""
        began = time.monotonic()
        messages = self._pool.listen(self._workers, seconds)
        waited = min(time.monotonic() - began, 2 * LISTEN_SECONDS)  # the machine may have been suspended
        for worker in self._workers:
            worker.silent += waited
        for worker, message in messages:
            if worker not in self._workers:
                continue  # it was replaced because of an earlier message
            worker.silent = 0.0
            if isinstance(message, Lost):
                self._replace(worker, message)
            elif message is not None:
                self._receive(worker, message)
            elif worker.ready:
                worker.failed_starts = 0
        for worker in list(self._workers):
            if worker.in_hand and worker.silent > SILENCE_SECONDS and self._hangs(worker):
                self._replace(worker, Lost(f"hung for {SILENCE_SECONDS:.0f} seconds", "it was ended"))
        self._grow(self._pool.added())
        return bool(messages)

    def _grow(self, workers: int) -> None:
        """Start so many workers more."""
        if workers:
            self._count += workers
            self.ahead += PLANNED_AHEAD * workers
            self.start()

    def _receive(self, worker: W, report: BatchReport[TrainedTrip]) -> None:
        worker.used = report.used
        self._profile.add(report.profile)
        mean = report.seconds / len(report.results)
        self._seconds = 0.8 * self._seconds + 0.2 * mean if self._seconds else mean
        self._results.update(report.results)
        batch = next(batch for batch in worker.batches if not batch.keys().isdisjoint(report.results))
        for trip in report.results:
            del batch[trip]
            self._tries.pop(trip, None)
        if not batch:
            worker.batches.remove(batch)
        worker.in_hand -= len(report.results)
        self._in_hand -= len(report.results)

    def _hangs(self, worker: W) -> bool:
        """Return whether a silent worker has used no processor time since it was last heard."""
        used = self._pool.processor_seconds(worker)
        if used - worker.used < IDLE_SHARE * SILENCE_SECONDS:
            return True
        worker.silent, worker.used = 0.0, used
        return False

    def _replace(self, worker: W, lost: Lost) -> None:
        """Start another worker in place of a lost one, and make the jobs of the lost one ready again."""
        self._pool.stop(worker)
        failed = 0 if worker.ready else worker.failed_starts + 1
        if failed >= TRIES:
            raise RunError(f"a worker {lost.what} while it started, {failed} times ({lost.reason})")
        batches, worker.batches, worker.in_hand = worker.batches, deque(), 0
        for trip, job in batches[0].items() if batches else ():  # the batch that it was training
            tries = self._tries[trip] = self._tries.get(trip, 0) + 1
            if tries >= TRIES:
                raise RunError(
                    f"a worker {lost.what} {tries} times with trip {trip} of client {job.task.client} in "
                    f"hand ({lost.reason}); run with --workers 0 to see why"
                )
        for batch in batches:
            self._in_hand -= len(batch)
            for job in batch.values():
                self.submit(job)
        place = self._workers.index(worker)
        self._workers[place] = self._pool.start()
        self._workers[place].failed_starts = failed
