"""The common job of all speed measurements, and the bare loop that is their bar. Needs torch alone.

1,000 clients of 50 examples, one local epoch. Every peer's script trains the same models on the same
examples, so this file is read by virtual environments that do not have this project.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLIENTS, EXAMPLES, CLASSES, LR = 1000, 50, 47, 0.01
FEWEST = 6
"""Trips are never measured in smaller numbers, however slow they are."""

Client = tuple[Tensor, Tensor]
"""Features and labels."""


@dataclass(frozen=True)
class Job:
    """What is trained."""

    model: Callable[[], nn.Module]
    data: Callable[[], Sequence[Client]]
    batch: int
    warm: int
    """Trips before anything is measured, for each process: past tracing, where there is some."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, CLASSES))


def cnn() -> nn.Sequential:
    """0.88 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, CLASSES),
    )  # fmt: skip


def images() -> list[Client]:
    """28 x 28 pixels of noise, and labels."""
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(EXAMPLES, 1, 28, 28, generator=random),
            torch.randint(CLASSES, (EXAMPLES,), generator=random),
        )
        for _ in range(CLIENTS)
    ]


JOBS = {
    "MLP, batch 50": Job(mlp, images, 50, warm=2500),
    "MLP, batch 10": Job(mlp, images, 10, warm=500),
    "CNN, batch 50": Job(cnn, images, 50, warm=10),
}
"""Those that every peer can be given."""


class Bare:
    """Plain PyTorch: load a client, minibatch SGD, next client. No federation at all."""

    def __init__(self, job: Job, data: Sequence[Client]) -> None:
        self._data, self._batch = data, job.batch
        self._model = job.model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        self._done = 0
        for _ in range(job.warm):
            self.trip()

    def trip(self) -> None:
        x, y = self._data[self._done % len(self._data)]
        for part in torch.randperm(len(y)).split(self._batch):
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(x[part]), y[part]).backward()
            self._optimizer.step()
        self._done += 1

    def __call__(self, seconds: float) -> float:
        """Trips per second."""
        return trips_per_second(self.trip, seconds)


def trips_per_second(trip: Callable[[], None], seconds: float) -> float:
    """Make trips for so many seconds, a few at least."""
    trips, elapsed = trips_in(trip, seconds)
    return trips / elapsed


def trips_in(trip: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Make trips for so many seconds, a few at least. Return how many, and how long they took."""
    began, trips = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or trips < FEWEST:
        trip()
        trips += 1
    return trips, elapsed
