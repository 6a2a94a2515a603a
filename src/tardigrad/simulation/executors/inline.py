"""Training in this process, one trip at a time."""

from __future__ import annotations

from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Clients
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob
from tardigrad.simulation.executors.shared_memory import VersionSlots


class Inline:
    """Trains a trip in this process when its result is requested."""

    ahead = 1

    def __init__(self, trainer: Trainer, clients: Clients) -> None:
        self._trainer, self._clients = trainer, clients
        self._jobs: dict[int, TrainingJob] = {}
        self._versions = VersionSlots()

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        if vectors["model"].device.type != "cpu":
            return vectors
        # Versions live long and uploads do not: versions have memory of their own to avoid heap fragmentation
        stored = self._versions.publish(version, vectors)
        return vectors if stored is None else stored

    def withdraw(self, version: int) -> None:
        self._versions.withdraw(version)

    def submit(self, job: TrainingJob) -> None:
        self._jobs[job.task.trip] = job

    def result(self, trip: int) -> TrainedTrip:
        return train(self._trainer, self._clients, self._jobs.pop(trip))

    def profile(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._jobs.clear()


def train(trainer: Trainer, clients: Clients, job: TrainingJob) -> TrainedTrip:
    """Train one trip, and account for the time in the trainer's profile."""
    profile = trainer.profile
    with profile.part("training"):
        with profile.part("data"):
            examples = clients.indexed(job.client)
        return TrainedTrip(*trainer.train(job.task, job.memory, examples, job.seed))
