"""A dispatcher whose own process trains too.

With as many workers as cores, an engine that only waits and adds uploads up is one process too many. So it is
one of the workers: while the next result is not there, it trains. What it trains itself is neither packed nor
sent.
"""

from __future__ import annotations

from tardigrad.core.upload import Upload
from tardigrad.data.clients import Clients
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors.dispatch import BATCHES, LISTEN_SECONDS, PLANNED_AHEAD, Dispatcher
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob
from tardigrad.simulation.executors.worker_pool import Failure, Flow, W, WorkerPool, train_or_explain


class TrainingDispatcher(Dispatcher[W]):
    """An executor that trains jobs on the workers of a pool, and in this process when it would have to wait.

    A trip that kills the process that trains it would end the run. So this process trains nothing before a
    worker has answered, and nothing while there is a trip that has lost a worker.
    """

    _fewest = BATCHES + 1  # this process sends jobs only between its own trips

    def __init__(
        self, pool: WorkerPool[W], workers: int, flow: Flow, trainer: Trainer, clients: Clients
    ) -> None:
        """`workers`: those besides this process."""
        super().__init__(pool, workers, flow, trainer.profile)
        self.ahead = PLANNED_AHEAD * (workers + 1)
        self._trainer, self._clients = trainer, clients

    def _obtain(self, trip: int) -> None:
        while trip not in self._results:
            while self._listen(0.0):  # receive all messages
                pass
            job = self._job_for_here(trip) if self._is_next(trip) else None
            self._assign(needed=trip)  # before this process is busy
            if trip in self._results:
                break
            job = job or self._job_for_here(trip)
            if job is None:
                self._listen(LISTEN_SECONDS)
            else:
                self._results[job.task.trip] = self._train(job, keep=job.task.trip != trip)

    def _is_next(self, trip: int) -> bool:
        return bool(self._ready) and self._ready[0][1] == trip

    def _job_for_here(self, needed: int) -> TrainingJob | None:
        """Remove the earliest job from the heap, or return None if this process must not train now."""
        if not self._ready or not self._seconds or self._tries:
            return None
        _, queue = self._sizes(self._count)
        batch = self._take(1, self._window(queue, self._count), needed)
        return batch[0] if batch else None

    def _train(self, job: TrainingJob, keep: bool) -> TrainedTrip | Failure:
        """Train a job in this process. `keep`: whether others are trained before the result is used."""
        result = train_or_explain(self._trainer, self._clients, job)
        if not keep or isinstance(result, Failure):
            return result
        upload, lasting = result.upload, self._trainer.lasting
        vectors, memory = lasting(upload.vectors), lasting(result.memory)
        return TrainedTrip(Upload(vectors, upload.examples, upload.steps, upload.loss), memory)

    def _sizes(self, workers: int) -> tuple[int, int]:
        return super()._sizes(workers + 1)

    def _window(self, queue: int, workers: int) -> int:
        return super()._window(queue, workers + 1)
