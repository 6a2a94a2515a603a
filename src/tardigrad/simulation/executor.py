"""Executors: where trips are trained. The result is the same, bit for bit, whichever one it is (except
`Together`, where it is the same to rounding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.clients import Clients
from tardigrad.learning.local import Trainer
from tardigrad.simulation.shared import Slots, packed_size

MOST_VERSIONS = 4096
"""At a time, in memory of their own; address space alone until they are used."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trip to train: all its inputs exist."""

    time: float
    """When it arrives: results are asked for in this order."""
    task: Task
    client: int
    memory: Vectors
    seed: int


class Executor(Protocol):
    """Takes jobs as soon as they are ready, gives results when they are asked for."""

    ahead: int
    """How many trips it wants planned ahead of the one that is committed."""

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        """A version exists: the same vectors, where the executor wants to have them."""

    def withdraw(self, version: int) -> None:
        """Nobody needs this version any more."""

    def submit(self, job: Job) -> None:
        """A job is ready; train it some time before its result is asked for."""

    def result(self, trip: int) -> tuple[Upload, Vectors]:
        """The upload of a submitted trip, and what its client would remember. Valid until the next call."""

    def close(self) -> None:
        """No more results will be asked for."""


class Inline:
    """Trains in this process, when the result is asked for."""

    ahead = 1

    def __init__(self, trainer: Trainer, clients: Clients) -> None:
        self._trainer, self._clients = trainer, clients
        self._jobs: dict[int, Job] = {}
        self._versions: Slots | None = None
        self._slots: dict[int, int] = {}

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        # Versions live long, uploads do not: side by side they would leave the heap full of holes
        if vectors["model"].device.type != "cpu":
            return vectors
        if self._versions is None:
            self._versions = Slots(packed_size(vectors), MOST_VERSIONS)
        slot = self._versions.take()
        if slot is None:
            return vectors
        self._slots[version] = slot
        layout = self._versions.pack(slot, vectors)
        assert layout is not None, "all versions have the same vectors"
        return self._versions.unpack(slot, layout)

    def withdraw(self, version: int) -> None:
        slot = self._slots.pop(version, None)
        if slot is not None:
            assert self._versions is not None
            self._versions.give_back(slot)

    def submit(self, job: Job) -> None:
        self._jobs[job.task.trip] = job

    def result(self, trip: int) -> tuple[Upload, Vectors]:
        job = self._jobs.pop(trip)
        profile = self._trainer.profile
        with profile.part("training"):
            with profile.part("data"):
                examples = self._clients.indexed(job.client)
            return self._trainer.train(job.task, job.memory, examples, job.seed)

    def close(self) -> None:
        self._jobs.clear()
