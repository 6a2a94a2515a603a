"""Training on several nodes of Ray: each has its own processes and its own object store, on this machine."""

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from test_ray import wait_for

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.executors import dispatch
from tardigrad.simulation.executors.ray import workers
from tardigrad.simulation.executors.ray.actor import Actor
from tardigrad.simulation.executors.ray.kit import kit_size
from tardigrad.simulation.executors.ray.session import QUIET
from tardigrad.simulation.executors.ray.workers import RayWorkers

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

STORE = 100 << 20
SETTINGS = {
    "model": td.MLP(hidden=(300,)),  # its versions and uploads go through the object stores
    "local": td.Local(batch_size=16, lr=0.02),
    "stop": td.Stop(trips=120),
    "evaluation": td.Evaluation(every_trips=120),
}
RUNS = {
    "sum only": {"algorithm": td.FedBuff()},
    "client memory": {"algorithm": td.SCAFFOLD()},
    "private": {
        "algorithm": td.FedBuff(),
        "privacy": td.Participation(
            participations=100, separation=1, noise_multiplier=0.5, clip=0.5, noise_from="seed"
        ),
    },
}


def alive():
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


class Nodes:
    """A cluster: a head without CPUs, which the tests are on, and the nodes that they add."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        # Ray writes the cluster's address there, whatever `temp_dir` says, and does not make the folder.
        Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)

        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": folder}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(self._cluster.address, **QUIET)
        self.head = ray.get_runtime_context().get_node_id()

    def add(self, cpus):
        node = self._cluster.add_node(wait=False, num_cpus=cpus, object_store_memory=STORE)
        wait_for(lambda: node.node_id in alive())
        return node

    def kill(self, node):
        """End the raylet with SIGKILL, as if the machine was switched off."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(token, patiently):
    folder = tempfile.mkdtemp(prefix="nodes")  # a short path: Ray has sockets in there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's 15 leaves workers no time on a busy machine
        started = patiently(lambda: Nodes(folder))
        yield started
        started.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def first(nodes):
    return nodes.add(cpus=1)


@pytest.fixture(scope="module")
def second(nodes):
    return nodes.add(cpus=1)


@pytest.fixture(scope="module")
def actors(first, second):
    """For `warm_ray`: two on the first node, one on the second."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def start(node):
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        return ray.remote(Actor).options(num_cpus=0, scheduling_strategy=there).remote()

    started = [start(first), start(first), start(second)]
    yield started
    for actor in started:
        ray.kill(actor)


@pytest.fixture
def sent(monkeypatch):
    """Which versions each node was sent jobs of."""
    versions = defaultdict(set)
    send = RayWorkers.send

    def note(self, worker, jobs):
        versions[worker.greeting.node].update(job.task.version for job in jobs)
        send(self, worker, jobs)

    monkeypatch.setattr(RayWorkers, "send", note)
    return versions


def listen_until(executor, what):
    while not what():
        executor._listen()


def listen_until_ready(executor, number):
    def ready():
        return len(executor._workers) == number and all(worker.ready for worker in executor._workers)

    listen_until(executor, ready)


def run(settings, number, acts=None, kind="ray"):
    """Run with so many workers, all of them ready at the start. `acts`: by the number of trips, what is done
    then; it is called with the executor."""
    simulation = build(td.Config(**settings), workers=kind)
    executor, acts = simulation.executor, dict(acts or {})
    try:
        listen_until_ready(executor, number)
        steps = simulation.engine.run()
        while True:
            for trips in [trips for trips in acts if trips <= simulation.engine.trips]:
                acts.pop(trips)(executor)
            if next(steps, None) is None:
                break
        assert not acts
        return simulation.model.clone()
    finally:
        executor.close()


def inline(settings):
    return torch.cat([vector.reshape(-1) for vector in td.run(**settings).model.values()])


def created(node_id):
    """How many bytes have been stored on a node since it started: received from others, or made there."""
    from ray._private.internal_api import node_stats

    node = alive()[node_id]
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
    return stats.store_stats.cumulative_created_bytes


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", RUNS)
def test_two_nodes_have_the_bits_of_one_process(warm_ray, first, second, sent, case):
    settings = SETTINGS | RUNS[case]
    assert torch.equal(run(settings, 3, kind="ray:3"), inline(settings))
    assert sent.keys() == {first.node_id, second.node_id}


def test_data_and_versions_are_fetched_once_by_each_node(warm_ray, nodes, first, second, sent, monkeypatch):
    kits, published = [], []
    monkeypatch.setattr(workers, "kit_size", lambda kit: (kits.append(kit_size(kit)), kits[-1])[1])
    publish = RayWorkers.publish
    monkeypatch.setattr(
        RayWorkers, "publish", lambda self, *a: (published.append(a[0]), publish(self, *a))[1]
    )
    places = {"head": nodes.head, "first": first.node_id, "second": second.node_id}
    start = {name: created(place) for name, place in places.items()}
    ready, end = {}, {}

    def note(into):
        into.update({name: created(place) - start[name] for name, place in places.items()})

    def note_end(executor):
        listen_until(executor, lambda: not executor._in_hand)  # then the head has received all that was made
        note(end)

    run(SETTINGS, 3, {0: lambda _: note(ready), 120: note_end}, kind="ray:3")
    (kit,), version = kits, 4 * (65 * 300 + 301 * 10)
    assert kit > 400_000
    for name in ("first", "second"):  # the first has two workers
        assert ready[name] == pytest.approx(kit, rel=0.05)
    uploads = end["head"] - kit - len(published) * version
    assert uploads > 50 * version
    fetched = sum(len(sent[place]) for place in (first.node_id, second.node_id))
    assert end["first"] + end["second"] == pytest.approx(2 * kit + fetched * version + uploads, abs=version)


def test_a_node_that_joins_during_the_run_is_used(nodes, first, second, sent, monkeypatch):
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.0)
    joined = []

    def join(executor):
        joined.append(nodes.add(cpus=1))
        listen_until_ready(executor, 3)

    assert torch.equal(run(SETTINGS, 2, {40: join}), inline(SETTINGS))
    assert sent.keys() == {node.node_id for node in (first, second, *joined)}
    nodes.kill(joined[0])
    wait_for(lambda: joined[0].node_id not in alive())


def test_a_node_is_lost_and_another_one_takes_its_place(nodes, first, second, sent, monkeypatch):
    monkeypatch.setattr(dispatch, "TRIES", 2)  # fewer than the workers that are lost
    settings = SETTINGS | RUNS["client memory"]
    large = nodes.add(cpus=2)
    lost, others = [], []

    def lose(executor):
        lost.extend(worker for worker in executor._workers if worker.greeting.node == large.node_id)
        assert len(lost) == 2
        nodes.kill(large)

    def replace(executor):
        assert not any(worker in executor._workers for worker in lost)
        # until Ray knows that the node is lost, it may try to start the new workers there
        wait_for(lambda: large.node_id not in alive())
        others.append(nodes.add(cpus=2))
        listen_until_ready(executor, 4)

    assert torch.equal(run(settings, 4, {35: lose, 75: replace}), inline(settings))
    assert sent.keys() == {node.node_id for node in (first, second, large, *others)}
