"""The interface of an executor: the jobs that it is given, the results that it returns, and its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tardigrad.core.upload import Task, Upload, Vectors


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One trip to train, with all the inputs of its training."""

    time: float
    """When the trip arrives; results are requested in the order of (time, trip)."""
    task: Task
    client: int
    memory: Vectors
    """The client's memory from its earlier trips."""
    seed: int


class TrainedTrip(NamedTuple):
    """The result of a job."""

    upload: Upload
    memory: Vectors
    """The client's new memory, if the upload is accepted."""


class Executor(Protocol):
    """Trains jobs, in this process or elsewhere, and returns their results on request.

    A job contains everything that its training depends on, so an executor may train jobs in any order and at
    any time between `submit` and `result`. Every executor returns the same bits, except `Vectorised`, which
    agrees with the others to rounding.
    """

    ahead: int
    """How many uploads the engine should plan ahead of the one that it commits."""

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        """Store a new version that jobs may start from, and return the stored vectors.

        The caller uses the returned vectors in place of its own, until it withdraws the version.
        """

    def withdraw(self, version: int) -> None:
        """Discard a version. No job that is submitted or waiting for its result starts from it."""

    def submit(self, job: TrainingJob) -> None:
        """Accept a job. Its version has been published."""

    def result(self, trip: int) -> TrainedTrip:
        """Return the result of a submitted trip, and forget it; wait for it if necessary.

        The vectors of the upload may be overwritten at the next call of `result`; those of the memory are
        the caller's. Raises a RunError if the training failed, and a KeyError if the trip was not submitted.
        """

    def profile(self) -> dict[str, float]:
        """Return the seconds that workers outside this process have spent so far, by kind of work.

        Empty for an executor that trains in this process: the trainer's own profile contains its seconds.
        """

    def close(self) -> None:
        """End all workers and release their memory. Calling it again has no effect."""
