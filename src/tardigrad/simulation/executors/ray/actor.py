"""The part of training on Ray that runs in the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tardigrad.core.upload import Task, Vectors
from tardigrad.learning.freed_memory import keep_freed_memory
from tardigrad.simulation.executors.protocol import TrainingJob
from tardigrad.simulation.executors.ray.kit import Kit, PackedVectors, pack, unpack, unpack_kit
from tardigrad.simulation.executors.worker_pool import BatchReport, Failure, train_or_explain


class RayOrder(NamedTuple):
    """A job, as it is sent to a worker."""

    trip: int
    client: int
    version: int
    staleness: float | None
    seed: int
    memory: PackedVectors


class RayReply(NamedTuple):
    """A trained trip, as a worker answers it."""

    upload: PackedVectors
    memory: PackedVectors
    examples: int
    steps: int
    loss: float


class Greeting(NamedTuple):
    """The first answer of a worker, after it has started."""

    platform: str
    node: str
    process: int


class Actor:
    """A worker, on the node that Ray has chosen."""

    def greet(self) -> Greeting:
        """Return where this worker runs, and on what platform."""
        import ray

        return Greeting(platform(), ray.get_runtime_context().get_node_id(), os.getpid())

    def build(self, kit: Kit) -> None:
        """Unpack what trips are trained with."""
        torch.set_num_threads(1)
        keep_freed_memory()
        self._trainer, self._clients = unpack_kit(kit)
        self._trainer.profile.on = True
        self._versions: dict[int, Vectors] = {}

    def train(
        self, orders: Sequence[RayOrder], gone: set[int], new: Sequence[int], *versions: PackedVectors
    ) -> BatchReport[RayReply]:
        """Train some trips, after discarding the versions `gone` and storing the `new` ones."""
        for version in gone:
            del self._versions[version]
        for version, packed in zip(new, versions):
            self._versions[version] = unpack(packed)
        began = time.perf_counter()
        replies = {order.trip: self._train(order) for order in orders}
        seconds = time.perf_counter() - began
        return BatchReport(replies, seconds, self._trainer.profile.take(), time.process_time())

    def _train(self, order: RayOrder) -> RayReply | Failure:
        version = self._versions[order.version]
        task = Task(order.trip, order.client, order.version, version, order.staleness)
        job = TrainingJob(0.0, task, order.client, unpack(order.memory), order.seed)
        result = train_or_explain(self._trainer, self._clients, job)
        if isinstance(result, Failure):
            return result
        upload = result.upload
        with self._trainer.profile.part("upload"):
            lasting = self._trainer.lasting  # other trips of the same call follow
            sent, kept = pack(lasting(upload.vectors)), pack(lasting(result.memory))
        return RayReply(sent, kept, upload.examples, upload.steps, upload.loss)


def platform() -> str:
    """Return what the bits of a result depend on, other than its inputs."""
    return f"torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}"
