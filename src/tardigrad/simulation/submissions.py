"""Submissions: when a planned trip is given to the executor.

A trip is submitted as soon as its inputs exist: the version that it starts from and, for algorithms with
client memory, the memory of its client after the client's earlier trips. That may be long before the trip is
committed.
"""

from __future__ import annotations

from collections import deque

from tardigrad.algorithms.layers import kept_by_layers
from tardigrad.core.draws import key
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.simulation.executors import Executor, TrainingJob
from tardigrad.simulation.live_versions import LiveVersions


class Submissions:
    """The accepted trips that are planned and not committed, and the memories of the clients."""

    def __init__(self, executor: Executor, versions: LiveVersions, remembers: bool, seed: int) -> None:
        """`remembers`: whether the algorithm's clients keep a memory between trips."""
        self._executor, self._versions, self._remembers, self._seed = executor, versions, remembers, seed
        self.memories: dict[int, Vectors] = {}
        """The memory of each client, by client."""
        self._count = 0
        self._tasks: dict[int, Task] = {}  # by trip: submitted, not committed
        self._for_version: dict[int, list[Accepted]] = {}  # waiting for their version
        self._for_client: dict[int, deque[Accepted]] = {}  # waiting for the memory of their client
        self._training: set[int] = set()  # clients of submitted trips

    def __len__(self) -> int:
        """Return how many trips are planned and not committed."""
        return self._count

    def plan(self, trip: Accepted) -> None:
        """Submit a trip, or keep it until its inputs exist."""
        self._count += 1
        if trip.ticket.version in self._versions:
            self._version_exists(trip)
        else:
            self._for_version.setdefault(trip.ticket.version, []).append(trip)

    def published(self, version: int) -> None:
        """Submit the trips that waited for this version."""
        for trip in self._for_version.pop(version, []):
            self._version_exists(trip)

    def collect(self, trip: Accepted) -> tuple[Upload, Task]:
        """Return what a trip uploads and the task that it was given. Wait for the result if necessary."""
        upload, memory = self._executor.result(trip.trip)
        if self._remembers:
            client = _client(trip)
            self.memories[client] = memory | kept_by_layers(self.memories.get(client, {}))
        return upload, self._tasks.pop(trip.trip)

    def committed(self, trip: Accepted) -> None:
        """Note that a collected trip is committed, and submit the next trip of its client."""
        self._count -= 1
        client = _client(trip)
        self._training.discard(client)
        waiting = self._for_client.get(client)
        if waiting:
            self._submit(waiting.popleft())
            if not waiting:
                del self._for_client[client]

    def _version_exists(self, trip: Accepted) -> None:
        """Submit a trip whose version exists, unless an earlier trip of its client is not committed."""
        client = _client(trip)
        if self._remembers and client in self._training:
            self._for_client.setdefault(client, deque()).append(trip)
        else:
            self._submit(trip)

    def _submit(self, trip: Accepted) -> None:
        client, version = _client(trip), trip.ticket.version
        self._training.add(client)
        task = Task(trip.trip, client, version, self._versions[version], float(trip.staleness))
        self._tasks[trip.trip] = task
        seed = key(self._seed, "trip", trip.trip)
        memory = self.memories.get(client, {})
        if kept := kept_by_layers(memory):
            memory = {name: vector for name, vector in memory.items() if name not in kept}
        self._executor.submit(TrainingJob(trip.time, task, client, memory, seed))


def _client(trip: Accepted) -> int:
    assert isinstance(trip.client, int), "clients are numbered in a simulation"
    return trip.client
