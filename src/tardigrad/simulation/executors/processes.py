"""Training in several processes on one machine, one thread each. This process is one of them.

Workers are forked, so they have the data and the module without a copy. Versions and uploads pass through
shared memory, small messages through pipes.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import RunError
from tardigrad.learning.local import RULE_VECTORS, Trainer
from tardigrad.simulation.executors.dispatch import BATCHES, Dispatcher
from tardigrad.simulation.executors.processor_time import processor_seconds
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob
from tardigrad.simulation.executors.shared_memory import ALIGNMENT, SlotLayout, Slots, VersionSlots
from tardigrad.simulation.executors.training_dispatch import TrainingDispatcher
from tardigrad.simulation.executors.worker_pool import (
    MOST_TRIPS,
    BatchReport,
    Failure,
    Flow,
    Lost,
    Message,
    Worker,
    train_or_explain,
)

FLOW = Flow(batch_seconds=0.005, queue_seconds=0.02)
"""While a worker has a job in hand that is needed next, this process trains later ones. With a short queue
few of their uploads wait, so that most are still in the cache when they are added up."""


class ProcessOrder(NamedTuple):
    """A job, as it is sent to a worker."""

    trip: int
    client: int
    version: int
    staleness: float | None
    seed: int
    position: tuple[int, SlotLayout]
    """The position of the version."""
    slot: int
    """Contains the client's memory, and room for the upload and for the new memory."""
    memory: SlotLayout


class ProcessReply(NamedTuple):
    """A trained trip, as a worker answers it. Its vectors are in the slot of the order."""

    upload: SlotLayout
    memory: SlotLayout
    examples: int
    steps: int
    loss: float


@dataclass(eq=False)
class ForkedWorker(Worker):
    """A worker process, and this process's end of its pipe."""

    process: BaseProcess
    pipe: Connection

    @property
    def pid(self) -> int | None:
        return self.process.pid


class ForkedWorkers:
    """A pool of processes that are forked from this one. The first version is published before the first
    worker is started, so that they share its memory."""

    def __init__(self, trainer: Trainer, clients: Clients, workers: int) -> None:
        self._trainer, self._clients = trainer, clients
        self._context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []  # this process's ends
        self._versions = VersionSlots()
        self._memory_size = -(-trainer.memory_bytes // ALIGNMENT) * ALIGNMENT
        # a slot has three parts: the memory that is sent, the memory that is returned, and the upload
        self._slots = Slots(3 * self._memory_size, 8 * BATCHES * MOST_TRIPS * workers)
        self._slot_of: dict[int, int] = {}  # by trip
        self._frozen = False

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        stored = self._versions.publish(version, vectors)
        if stored is None:
            raise RunError(
                f"{len(self._versions)} versions are in use at once, which is more than shared memory "
                "has room for; set buffer.staleness_bound, or run with --workers 0"
            )
        return stored

    def withdraw(self, version: int) -> None:
        self._versions.withdraw(version)

    def start(self) -> ForkedWorker:
        if not self._frozen:
            gc.freeze()  # the workers' garbage collectors need not look at what exists now
            self._frozen = True
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._work, args=(theirs, ours), daemon=True)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        return ForkedWorker(process, ours)

    def added(self) -> int:
        return 0

    def send(self, worker: ForkedWorker, jobs: Sequence[TrainingJob]) -> None:
        orders = [self._order(job) for job in jobs]
        with contextlib.suppress(BrokenPipeError):  # the worker has died, which `listen` will report
            worker.pipe.send(orders)

    def _order(self, job: TrainingJob) -> ProcessOrder:
        task = job.task
        slot = self._slots.take()
        assert slot is not None, "there are more slots than jobs that are sent and not committed"
        self._slot_of[task.trip] = slot
        memory = self._slots.pack(slot, job.memory, size=self._memory_size)
        if memory is None:
            raise RunError(self._too_many(task.trip))
        position = self._versions.position(task.version)
        return ProcessOrder(
            task.trip, job.client, task.version, task.staleness, job.seed, position, slot, memory
        )

    def listen(self, workers: Sequence[ForkedWorker], seconds: float) -> list[tuple[ForkedWorker, Message]]:
        messages: list[tuple[ForkedWorker, Message]] = []
        ready = set(wait([worker.pipe for worker in workers], timeout=seconds))
        for worker in workers:
            if worker.pipe in ready:
                try:
                    report: BatchReport[ProcessReply] = worker.pipe.recv()
                    messages.append((worker, report.decoded(self._trained)))
                except (EOFError, OSError):
                    _end(worker)
                    messages.append((worker, Lost("died", f"exit code {worker.process.exitcode}")))
        return messages

    def _trained(self, trip: int, reply: ProcessReply) -> TrainedTrip:
        slot = self._slot_of[trip]
        vectors = self._slots.unpack(slot, reply.upload)
        memory = self._slots.unpack(slot, reply.memory)
        return TrainedTrip(
            Upload(vectors, reply.examples, reply.steps, reply.loss),
            {name: vector.clone() for name, vector in memory.items()},
        )

    def processor_seconds(self, worker: ForkedWorker) -> float:
        return processor_seconds(worker.pid or 0)

    def stop(self, worker: ForkedWorker) -> None:
        _end(worker)
        worker.pipe.close()
        self._pipes.remove(worker.pipe)
        for batch in worker.batches:
            for trip in batch:
                self.release(trip)

    def release(self, trip: int) -> None:
        slot = self._slot_of.pop(trip, None)
        if slot is not None:
            self._slots.release(slot)

    def close(self, workers: Sequence[ForkedWorker]) -> None:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._pipes.clear()
        if self._frozen:
            gc.unfreeze()
            self._frozen = False

    # -- in the worker ---------------------------------------------------------------------------

    def _work(self, pipe: Connection, parents_end: Connection) -> None:
        """Train batches until the parent closes the pipe."""
        parents_end.close()
        for other in self._pipes:  # inherited ends, which would keep the other workers' pipes open
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
        torch.set_num_threads(1)
        profile = self._trainer.profile
        profile.restart()
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                orders: list[ProcessOrder] = pipe.recv()
                replies: dict[int, ProcessReply | Failure] = {}
                began, used = time.perf_counter(), time.process_time()
                for order in orders:
                    replies[order.trip] = self._train(order)
                    now = time.process_time()
                    late = time.perf_counter() - began > FLOW.queue_seconds
                    if now - used > FLOW.batch_seconds or late or order is orders[-1]:
                        pipe.send(BatchReport(replies, now - used, profile.take(), now))
                        replies, began, used = {}, time.perf_counter(), now

    def _train(self, order: ProcessOrder) -> ProcessReply | Failure:
        version = self._versions.read(*order.position)
        task = Task(order.trip, order.client, order.version, version, order.staleness)
        memory = self._slots.unpack(order.slot, order.memory)
        job = TrainingJob(0.0, task, order.client, memory, order.seed)
        result = train_or_explain(self._trainer, self._clients, job)
        if isinstance(result, Failure):
            return result
        upload = result.upload
        with self._trainer.profile.part("upload"):
            size = self._memory_size
            kept = self._slots.pack(order.slot, result.memory, size, start=size)
            sent = self._slots.pack(order.slot, upload.vectors, size, start=2 * size)
        if kept is None or sent is None:
            return Failure(self._too_many(order.trip))
        return ProcessReply(sent, kept, upload.examples, upload.steps, upload.loss)

    def _too_many(self, trip: int) -> str:
        return (
            f"trip {trip}: more than {RULE_VECTORS} vectors of the algorithm to upload or remember; run with "
            "--workers 0"
        )


def process_executor(trainer: Trainer, clients: Clients, workers: int) -> Dispatcher[ForkedWorker]:
    """Return an executor that trains in this process and in `workers` - 1 forked ones."""
    return TrainingDispatcher(ForkedWorkers(trainer, clients, workers), workers - 1, FLOW, trainer, clients)


def _end(worker: ForkedWorker) -> None:
    worker.process.kill()
    worker.process.join()
