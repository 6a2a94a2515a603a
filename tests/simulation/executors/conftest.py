"""A Ray for the tests of this folder, and workers on it that have already started."""

import contextlib
import os
import secrets
import signal

import pytest

from tardigrad.simulation.executors.ray import workers
from tardigrad.simulation.executors.ray.actor import Actor
from tardigrad.simulation.executors.ray.session import RaySession
from tardigrad.simulation.executors.ray.workers import RayWorkers

try:
    import ray
except ImportError:
    ray = None


os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's own 15, workers starve beside other tests
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "300")  # Ray's own 30 are few beside other tests


@contextlib.contextmanager
def at_most(seconds):
    """Raise a TimeoutError after so many seconds, so that a stuck worker does not stop all tests."""

    def give_up(*_):
        raise TimeoutError(f"not done in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    """No test goes on for ever; but on a busy machine Ray may take its time."""
    monkeypatch.setattr(workers, "START_SECONDS", 300.0)
    with at_most(600):
        yield


@pytest.fixture(scope="session", autouse=True)
def token():
    """A token for Ray that all processes of these tests know; none is read from the home directory. All
    modules have the same one, because Ray uses the first that a process has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture(scope="session")
def patiently():
    """Call this to start Ray. Ray gives its processes thirty seconds, which are not always enough beside
    other tests; then it is started again."""

    def started(start):
        for _ in range(2):
            with contextlib.suppress(Exception):
                return start()
        return start()

    return started


@pytest.fixture(scope="module")
def local_ray(token, patiently):
    """One local Ray with two CPUs for all tests of a module."""
    with at_most(600):
        session = patiently(lambda: RaySession(None, cpus=2, store=200 << 20))
    yield session
    with at_most(600):
        session.close()


@pytest.fixture(scope="module")
def actors(local_ray):
    """Two actors that have started, for one run after another; they leave the CPUs to others."""
    started = [start_actor() for _ in range(2)]
    yield started
    for actor in started:
        ray.kill(actor)


def start_actor():
    return ray.remote(Actor).options(num_cpus=0).remote()


@pytest.fixture
def warm_ray(monkeypatch, actors):
    """Executors on Ray use the actors that have started, which saves some seconds in each test."""
    idle = list(actors)

    class WarmWorkers(RayWorkers):
        def start(self):
            if not idle:  # one was ended
                actors.append(start_actor())
                idle.append(actors[-1])
            return self.started(idle.pop())

        def stop(self, worker):
            actors.remove(worker.actor)
            super().stop(worker)

        def close(self, workers):
            idle[:] = actors
            super().close([])

    monkeypatch.setattr(workers, "RayWorkers", WarmWorkers)
