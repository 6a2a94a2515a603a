"""Workers on Ray: one actor each, one thread a worker.

What every worker needs, the module and the clients' data, is put into Ray's object store once: the workers
of a node share one copy. The same holds for every version. Orders and uploads are arguments and return values
of the calls.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tardigrad.core.extras import pip_install
from tardigrad.core.upload import Upload, Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors.dispatch import Dispatcher
from tardigrad.simulation.executors.processor_time import processor_seconds
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob
from tardigrad.simulation.executors.ray.actor import Actor, Greeting, RayOrder, RayReply, platform
from tardigrad.simulation.executors.ray.kit import PackedVectors, kit_size, pack, pack_kit, unpack
from tardigrad.simulation.executors.ray.session import SMALLEST_STORE, RaySession
from tardigrad.simulation.executors.worker_pool import MOST_TRIPS, BatchReport, Flow, Lost, Message, Worker

if TYPE_CHECKING:
    from typing import Any

    Handle: TypeAlias = Any
    """A Ray actor or object reference. Ray is an optional dependency, so its types cannot be relied on."""

CALL_SECONDS = 0.1
"""Trips that take this long together go in one call, which itself costs a few milliseconds."""
MOST_BYTES = 1 << 25
"""Upper bound on the uploads in one call, if there are at least two."""
SMALL_VERSION = 1 << 16
"""Bytes up to which a version is sent with the calls, which is cheaper than the object store."""
START_SECONDS = 45.0
"""How long it may take until the first worker has started."""
LOOK_SECONDS = 10.0
"""How often a run looks for nodes that have joined the cluster."""
LOAD_SECONDS = 600.0
"""How long a worker that has started may take to receive the data."""


@dataclass(eq=False)
class RayWorker(Worker):
    """A Ray actor, and the calls that it has not answered."""

    actor: Handle
    starting: list[Handle]
    """The calls that must be answered before the worker is ready: `greet` and `build`."""
    calls: list[Handle] = field(default_factory=list)
    """Calls of `train`, one for each batch."""
    versions: set[int] = field(default_factory=set)
    """The versions that it has stored."""
    greeting: Greeting | None = None

    @property
    def pid(self) -> int | None:
        return None if self.greeting is None else self.greeting.process


class RayWorkers:
    """A pool of Ray actors.

    `workers`: how many there will be; None means one for each CPU of the cluster, also of nodes that join it
    later. `address`: of the cluster to join; see `RaySession`.
    """

    def __init__(
        self, trainer: Trainer, clients: Clients, workers: int | None = None, address: str | None = None
    ) -> None:
        try:
            from ray import cloudpickle
        except ImportError:
            raise ConfigError(f"--workers ray needs Ray: {pip_install('ray')}") from None
        if trainer.flat.vector.device.type != "cpu":
            raise ConfigError(
                "--workers ray trains on CPUs; set device.kind = 'cpu', or run with --workers 0"
            )
        kit = pack_kit(cloudpickle, trainer, clients)
        vector = trainer.flat.vector.numel() * trainer.flat.vector.element_size()
        self.most_trips = max(1, min(MOST_TRIPS, MOST_BYTES // vector))
        # enough for the kit, some versions and the uploads; Ray puts on disk what does not fit
        self._session = RaySession(address, workers, kit_size(kit) + 256 * vector + SMALLEST_STORE // 2)
        self._ray = self._session.ray
        self._versions: dict[int, Handle | PackedVectors] = {}  # large ones are in the object store
        try:
            cpus = self._session.cpus
            if cpus == 0:
                raise ConfigError(
                    "--workers ray: the cluster offers no CPUs; start its nodes with --num-cpus"
                )
            self.count = workers or cpus
            self._grows, self._last_look = workers is None, time.monotonic()
            self._kit: Handle = self._ray.put(kit)
        except BaseException:
            self._session.close()
            raise

    def publish(self, version: int, vectors: Vectors) -> Vectors:
        packed = pack(vectors)
        if sum(content.nbytes for _, _, content in packed.values()) <= SMALL_VERSION:
            self._versions[version] = packed
            return vectors
        reference = self._versions[version] = self._ray.put(packed)
        return unpack(self._ray.get(reference))  # so that the copy in the object store is the only one

    def withdraw(self, version: int) -> None:
        del self._versions[version]

    def start(self) -> RayWorker:
        # Ray does not restart actors or calls: the dispatcher decides which jobs are trained again
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        actor = self._ray.remote(Actor).options(runtime_env=self._session.environment, **options).remote()
        return self.started(actor)

    def started(self, actor: Handle) -> RayWorker:
        """Return the worker of an actor that has not been sent its kit."""
        worker = RayWorker(actor, [actor.greet.remote(), actor.build.remote(self._kit)])
        worker.ready = False
        return worker

    def added(self) -> int:
        if not self._grows or time.monotonic() - self._last_look < LOOK_SECONDS:
            return 0
        # a lost node is not subtracted: its workers wait until there is another one
        more = max(0, self._session.cpus - self.count)
        self.count += more
        self._last_look = time.monotonic()
        return more

    def send(self, worker: RayWorker, jobs: Sequence[TrainingJob]) -> None:
        gone = worker.versions - self._versions.keys()
        new = sorted({job.task.version for job in jobs} - worker.versions)
        worker.versions = (worker.versions - gone).union(new)
        values = [self._versions[version] for version in new]  # Ray replaces references by their objects
        worker.calls.append(worker.actor.train.remote([_order(job) for job in jobs], gone, new, *values))

    def listen(self, workers: Sequence[RayWorker], seconds: float) -> list[tuple[RayWorker, Message]]:
        pending = {call: worker for worker in workers for call in (*worker.starting, *worker.calls)}
        answered, _ = self._ray.wait(list(pending), timeout=seconds)
        if answered:  # collect the others that are available too
            answered, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        messages = [(pending[call], self._receive(pending[call], call)) for call in answered]
        for worker in workers:
            if worker.greeting and not worker.ready and worker.silent > LOAD_SECONDS:
                what = f"had not loaded its data in {LOAD_SECONDS:.0f} seconds"
                messages.append((worker, Lost(what, "it was ended")))
        if all(worker.greeting is None and worker.silent > START_SECONDS for worker in workers):
            free = self._ray.available_resources().get("CPU", 0)
            raise RunError(
                f"no Ray worker has started in {START_SECONDS:.0f} seconds; "
                f"the cluster has {self._session.cpus} CPUs, {free:g} of them free"
            )
        return messages

    def _receive(self, worker: RayWorker, call: Handle) -> Message:
        try:
            answer: Greeting | BatchReport[RayReply] | None = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:  # errors of trips are part of an answer
            last_line = str(error).strip().rpartition("\n")[2]
            raise RunError(f"a Ray worker could not get ready: {last_line}") from None
        except self._ray.exceptions.RayError as error:
            return Lost("died", str(error).strip().partition("\n")[0].rstrip(".:"))
        if isinstance(answer, BatchReport):
            worker.calls.remove(call)
            return answer.decoded(_trained)
        worker.starting.remove(call)
        if isinstance(answer, Greeting):
            worker.greeting = answer
            _check_platform(answer)
        worker.ready = not worker.starting
        return None

    def processor_seconds(self, worker: RayWorker) -> float:
        # the worker itself does not answer, so another task on its node reads its processor time
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        assert worker.greeting is not None
        same_node = NodeAffinitySchedulingStrategy(worker.greeting.node, soft=False)
        task = self._ray.remote(processor_seconds).options(num_cpus=0, scheduling_strategy=same_node)
        try:
            return float(self._ray.get(task.remote(worker.greeting.process), timeout=START_SECONDS))
        except self._ray.exceptions.RayError:  # the node is lost, or does not answer either
            return 0.0

    def stop(self, worker: RayWorker) -> None:
        with contextlib.suppress(Exception):  # it may be dead already
            self._ray.kill(worker.actor)

    def release(self, trip: int) -> None:
        """Do nothing: the vectors of an upload keep their memory alive."""

    def close(self, workers: Sequence[RayWorker]) -> None:
        for worker in workers:
            self.stop(worker)
        self._kit = None
        self._versions.clear()
        self._session.close()


def ray_executor(text: str, trainer: Trainer, clients: Clients) -> Dispatcher[RayWorker]:
    """Return an executor on Ray for a value of `--workers`: ray (a worker for each CPU of this machine),
    ray:4 (four workers), ray:auto or ray:HOST:PORT (a cluster)."""
    if re.fullmatch(r"ray(:[1-9]\d*)?", text, re.ASCII):
        pool = RayWorkers(trainer, clients, workers=int(text[4:] or 0) or None)
    elif re.fullmatch(r"ray:(auto|[^/]+:\d+)", text, re.ASCII):
        pool = RayWorkers(trainer, clients, address=text[4:])
    else:
        raise ConfigError(
            f"--workers {text}: must be ray or ray:N (a Ray on this machine, with N workers), ray:auto or "
            "ray:HOST:PORT (the cluster that this machine is a node of)"
        )
    flow = Flow(CALL_SECONDS, 2 * CALL_SECONDS, pool.most_trips)
    executor = Dispatcher(pool, pool.count, flow, trainer.profile)
    try:
        executor.start()  # now, because it takes seconds, in which the engine has other work
    except BaseException:
        executor.close()
        raise
    return executor


def _order(job: TrainingJob) -> RayOrder:
    task = job.task
    return RayOrder(task.trip, job.client, task.version, task.staleness, job.seed, pack(job.memory))


def _trained(trip: int, reply: RayReply) -> TrainedTrip:
    memory = {name: vector.clone() for name, vector in unpack(reply.memory).items()}  # outlives the reply
    return TrainedTrip(Upload(unpack(reply.upload), reply.examples, reply.steps, reply.loss), memory)


def _check_platform(greeting: Greeting) -> None:
    if greeting.platform != platform():
        raise RunError(
            f"a Ray worker runs on {greeting.platform}, and this process on {platform()}: "
            "the result would not be the same bits; take nodes and environments that are alike"
        )
