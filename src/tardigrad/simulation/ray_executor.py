"""Training on a Ray cluster, or on a Ray of its own on this machine; one thread a worker.

What every worker needs, the module and the clients' data, is put into Ray's object store once: the workers
of a node share one copy. So is every version, when it is published. Orders and uploads go with the calls,
several trips in one where trips are short. Jobs are trained in the order in which they will be committed,
only so far ahead that nobody runs dry. A worker that dies or hangs is replaced and its jobs run again.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any

from tardigrad.core.upload import Upload, Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.local import Trainer
from tardigrad.learning.profile import Profile
from tardigrad.simulation.executor import Job
from tardigrad.simulation.processor_time import processor_seconds
from tardigrad.simulation.ray_actor import Actor, Greeting, Order, Reply, platform
from tardigrad.simulation.ray_kit import kit_size, pack, pack_kit, unpack
from tardigrad.simulation.ray_session import SMALLEST_STORE, RaySession

CALL_SECONDS = 0.1
"""Trips that take so long together go in one call, which itself costs a few milliseconds."""
CALLS = 2
"""At a worker at a time: one that it works on, one that lies ready."""
MOST_TRIPS = 64
"""In one call."""
MOST_BYTES = 1 << 25
"""Of the uploads in one call, if there are two at least."""
SMALL = 1 << 16
"""Bytes of a version that goes with the calls: less than the object store would cost."""
START_SECONDS = 45.0
"""Until then one worker at least must have started."""
LOAD_SECONDS = 600.0
"""Until then the data must have come to a worker that has started."""
SILENCE_SECONDS = 45.0
"""A worker that says nothing for so long and uses no processor time meanwhile is taken to hang. One that
computes may take as long as it likes: so would the same trip without workers."""
IDLE_SHARE = 0.01
TRIES = 3


@dataclass(eq=False)
class _Worker:
    actor: Any
    opening: list[Any]
    """Calls that are not answered before it is ready: its greeting, and then that it has loaded its kit."""
    calls: dict[Any, list[Job]] = field(default_factory=dict)
    """Not answered yet, in the order in which it works on them."""
    versions: set[int] = field(default_factory=set)
    """Those that it has."""
    silent: float = 0.0
    """Seconds that it was listened to in vain."""
    greeting: Greeting | None = None
    used: float = 0.0
    """Processor seconds when it was last heard, or found to be computing."""

    @property
    def started(self) -> bool:
        return self.greeting is not None


class RayExecutor:
    """Trains trips in Ray actors.

    `workers`: how many; one for each CPU of the cluster if not given. `address`: of the cluster to join;
    without one, a Ray that this process has joined is used, or one is started on this machine.
    """

    def __init__(
        self, trainer: Trainer, clients: Clients, workers: int | None = None, address: str | None = None
    ) -> None:
        try:
            from ray import cloudpickle
        except ImportError:
            raise ConfigError("--workers ray needs Ray: pip install 'tardigrad[ray]'") from None
        if trainer.flat.vector.device.type != "cpu":
            raise ConfigError(
                "--workers ray trains on CPUs; set device.kind = 'cpu', or run with --workers 0"
            )
        self.profile = Profile()
        """What the workers do, all together."""
        self._ours = trainer.profile
        kit = pack_kit(cloudpickle, trainer, clients)
        vector = trainer.flat.vector.numel() * trainer.flat.vector.element_size()
        self._most_trips = max(1, min(MOST_TRIPS, MOST_BYTES // vector))
        # room for the kit, some versions and the uploads; what is more than that, Ray puts on disk
        self._session = RaySession(address, workers, kit_size(kit) + 256 * vector + SMALLEST_STORE // 2)
        self._ray = self._session.ray
        self._versions: dict[int, Any] = {}  # a reference to its vectors, or they themselves
        self._ready: list[tuple[float, int]] = []  # (arrival, trip), not given to a worker yet
        self._jobs: dict[int, Job] = {}
        self._results: dict[int, tuple[Upload, Vectors] | str] = {}
        self._tries: dict[int, int] = {}
        self._in_work = 0  # jobs given to workers and not answered
        self._false_starts = 0
        self._seconds = 0.0  # of a mean trip
        self._workers: list[_Worker] = []
        try:
            cpus = self._session.cpus
            if cpus == 0:
                raise ConfigError(
                    "--workers ray: the cluster offers no CPUs; start its nodes with --num-cpus"
                )
            count = workers or cpus
            self.ahead = 2 * CALLS * MOST_TRIPS * count
            self._kit = self._ray.put(kit)
            self._workers = [self._start() for _ in range(count)]
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_workers(cls, text: str, trainer: Trainer, clients: Clients) -> RayExecutor:
        """As `--workers` says it: ray, ray:4 (as many workers), ray:auto or ray:HOST:PORT (a cluster)."""
        if re.fullmatch(r"ray(:[1-9]\d*)?", text, re.ASCII):
            return cls(trainer, clients, workers=int(text[4:] or 0) or None)
        if re.fullmatch(r"ray:(auto|[^/]+:\d+)", text, re.ASCII):
            return cls(trainer, clients, address=text[4:])
        raise ConfigError(
            f"--workers {text}: must be ray or ray:N (a Ray on this machine, with N workers), ray:auto or "
            "ray:HOST:PORT (the cluster that this machine is a node of)"
        )

    # -- versions --------------------------------------------------------------------------------

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        packed = pack(vectors)
        if sum(content.nbytes for _, _, content in packed.values()) <= SMALL:
            self._versions[version] = packed
            return vectors
        reference = self._versions[version] = self._ray.put(packed)
        return unpack(self._ray.get(reference))  # the store's copy is the only one

    def withdraw(self, version: int) -> None:
        del self._versions[version]

    # -- jobs ------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        self._jobs[job.task.trip] = job
        heapq.heappush(self._ready, (job.time, job.task.trip))

    def result(self, trip: int) -> tuple[Upload, Vectors]:
        self._assign(needed=trip)
        with self._ours.part("waiting for workers"):
            while trip not in self._results:
                self._listen()
                self._assign(needed=trip)
        result = self._results.pop(trip)
        if isinstance(result, str):
            raise RunError(result)
        return result

    def _assign(self, needed: int) -> None:
        """Give ready jobs to workers that run low, the earliest first."""
        ready = [worker for worker in self._workers if not worker.opening]
        if not self._ready or not ready:
            return
        by_time = int(CALL_SECONDS / self._seconds) if self._seconds else 1
        share = math.ceil((len(self._ready) + self._in_work) / (CALLS * len(ready)))
        trips = max(1, min(by_time, share, self._most_trips))
        window = 3 * CALLS * trips * len(ready)  # trained and not committed, at most
        for worker in sorted(ready, key=lambda w: len(w.calls)):
            if len(worker.calls) == CALLS or (worker.calls and len(self._ready) < trips):
                break  # and so it is with those behind it: they can wait for a full call
            batch: list[Job] = []
            while self._ready and len(batch) < trips:
                trip = self._ready[0][1]
                if len(self._results) + self._in_work + len(batch) >= window and trip != needed:
                    break
                if batch and trip in self._tries:
                    break  # it may be what killed a worker: let it be alone
                heapq.heappop(self._ready)
                batch.append(self._jobs.pop(trip))
                if trip in self._tries:
                    break
            if batch:
                self._send(worker, batch)

    def _send(self, worker: _Worker, batch: list[Job]) -> None:
        if not worker.calls:
            worker.silent = 0.0
        gone = worker.versions - self._versions.keys()
        new = sorted({job.task.version for job in batch} - worker.versions)
        worker.versions = (worker.versions - gone).union(new)
        values = [self._versions[version] for version in new]  # Ray makes references into what they refer to
        call = worker.actor.train.remote([_order(job) for job in batch], gone, new, *values)
        worker.calls[call] = batch
        self._in_work += len(batch)

    # -- workers ---------------------------------------------------------------------------------

    def _start(self) -> _Worker:
        # never run again by Ray itself: which jobs run again is decided here
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        actor = self._ray.remote(Actor).options(runtime_env=self._session.environment, **options).remote()
        return _Worker(actor, [actor.greet.remote(), actor.build.remote(self._kit)])

    def _listen(self) -> None:
        """Wait until a worker has something to say, has died, or has been silent for too long."""
        pending = {call: worker for worker in self._workers for call in (*worker.opening, *worker.calls)}
        began = time.monotonic()
        answered, _ = self._ray.wait(list(pending), timeout=1.0)
        if answered:  # the others that are there too
            answered, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        waited = min(time.monotonic() - began, 2.0)  # not more, if this machine was suspended meanwhile
        for worker in self._workers:
            worker.silent += waited
        for call in answered:
            worker = pending[call]
            if worker in self._workers:  # it was not replaced just now
                self._hear(worker, call)
        for worker in list(self._workers):
            if worker.calls and worker.silent > SILENCE_SECONDS and self._hangs(worker):
                self._replace(worker, f"hung for {SILENCE_SECONDS:.0f} seconds", "it was ended")
            elif worker.opening and worker.started and worker.silent > LOAD_SECONDS:
                self._replace(worker, f"had not loaded its data in {LOAD_SECONDS:.0f} seconds", "ended")
        if all(not worker.started and worker.silent > START_SECONDS for worker in self._workers):
            free = self._ray.available_resources().get("CPU", 0)
            raise RunError(
                f"no Ray worker has started in {START_SECONDS:.0f} seconds; "
                f"the cluster has {self._session.cpus} CPUs, {free:g} of them free"
            )

    def _hangs(self, worker: _Worker) -> bool:
        """Has it not computed since it was last heard? Somebody else on its node looks."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        assert worker.greeting is not None
        there = NodeAffinitySchedulingStrategy(worker.greeting.node, soft=False)
        look = self._ray.remote(processor_seconds).options(num_cpus=0, scheduling_strategy=there)
        try:
            used = self._ray.get(look.remote(worker.greeting.process), timeout=START_SECONDS)
        except self._ray.exceptions.RayError:  # its node is gone, or as silent as it is
            return True
        if used - worker.used < IDLE_SHARE * SILENCE_SECONDS:
            return True
        worker.silent, worker.used = 0.0, used
        return False

    def _hear(self, worker: _Worker, call: Any) -> None:
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:  # not of a trip: those are told in the answer
            said = str(error).strip().rpartition("\n")[2]
            raise RunError(f"a Ray worker could not get ready: {said}") from None
        except self._ray.exceptions.RayError as error:
            self._replace(worker, "died", str(error).strip().partition("\n")[0].rstrip(".:"))
            return
        worker.silent = 0.0
        if call in worker.opening:
            worker.opening.remove(call)
            if isinstance(answer, Greeting):
                worker.greeting = answer
                self._check(answer)
            else:
                self._false_starts = 0
            return
        replies, profile, worker.used = answer
        self.profile.add(profile)
        self._in_work -= len(worker.calls.pop(call))
        for reply in replies:
            self._results[reply[0]] = _result(reply)
        mean = sum(profile.values()) / len(replies)
        self._seconds = 0.8 * self._seconds + 0.2 * mean if self._seconds else mean

    def _check(self, greeting: Greeting) -> None:
        if greeting.platform != platform():
            raise RunError(
                f"a Ray worker runs on {greeting.platform}, and this process on {platform()}: "
                "the result would not be the same bits; take nodes and environments that are alike"
            )

    def _replace(self, worker: _Worker, what: str, why: str) -> None:
        """Start another worker; the jobs of the lost one are ready again."""
        with contextlib.suppress(Exception):  # it may be dead already
            self._ray.kill(worker.actor)
        if worker.opening:
            self._false_starts += 1
            if self._false_starts >= TRIES:
                raise RunError(f"a Ray worker {what} while it started, {self._false_starts} times ({why})")
        for job in next(iter(worker.calls.values()), []):  # it was at these; those behind are not to blame
            trip = job.task.trip
            tries = self._tries[trip] = self._tries.get(trip, 0) + 1
            if tries >= TRIES:
                raise RunError(
                    f"a worker {what} {tries} times with trip {trip} of client {job.task.client} in hand "
                    f"({why}); run with --workers 0 to see why"
                )
        for job in [job for batch in worker.calls.values() for job in batch]:
            self._in_work -= 1
            self.submit(job)
        self._workers[self._workers.index(worker)] = self._start()

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker.actor)
        self._workers = []
        self._kit = None
        self._versions.clear()
        self._results.clear()
        self._session.close()


def _order(job: Job) -> Order:
    task = job.task
    return task.trip, job.client, task.version, task.staleness, job.seed, pack(job.memory)


def _result(reply: Reply) -> tuple[Upload, Vectors] | str:
    if len(reply) == 2:
        return reply[1]
    _, sent, kept, examples, steps, loss = reply
    memory = {name: vector.clone() for name, vector in unpack(kept).items()}  # it outlives the reply
    return Upload(unpack(sent), examples, steps, loss), memory
