"""What every executor must do, and what those with workers must do when something happens to a worker."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from reversed_executor import ReversedExecutor
from test_engine import finish, frozen, interrupted, make, uninterrupted

import tardigrad as td
from observers import InterruptAfter
from tardigrad.core.upload import Task
from tardigrad.data.clients import Given
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import MultiClass
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors import TrainingJob, choose, dispatch, make_executor
from tardigrad.simulation.executors.dispatch import Dispatcher
from tardigrad.simulation.executors.inline import Inline
from tardigrad.simulation.executors.processes import FLOW, ForkedWorkers

try:
    import ray
except ImportError:
    ray = None


@dataclass(frozen=True)
class Kind:
    """An executor to test."""

    make: type = None
    workers: int | str = 0
    """As `--workers`, where `make_executor` makes it."""
    at_once: int = 1
    exact: bool = True
    """Whether it gives the same bits as `Inline`, and not only the same numbers to rounding."""
    here: bool = True
    """Whether trips are trained in this process too."""

    def __call__(self, trainer, clients):
        if self.make is not None:
            return self.make(trainer, clients)
        return make_executor(self.workers, td.Device(clients_at_once=self.at_once), trainer, clients)


KINDS = {
    "inline": Kind(),
    "processes": Kind(workers=3),  # of which this process is one
    "vectorised": Kind(at_once=6, exact=False),
    "reversed": Kind(ReversedExecutor),
    "ray": Kind(
        workers="ray:2", here=False
    ),  # the last, because processes should not be forked while Ray is running
}
CHOSEN = pytest.mark.parametrize(
    "kind", [name for name, kind in KINDS.items() if kind.make is None], indirect=True, scope="module"
)
WITH_WORKERS = pytest.mark.parametrize("kind", ["processes", "ray"], indirect=True, scope="module")
FORKED = pytest.mark.parametrize("kind", ["processes"], indirect=True, scope="module")
"""For what depends on the dispatcher alone, because a new worker of Ray takes some seconds."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    if request.param == "ray":
        if ray is None:
            pytest.skip("Ray is not installed: pip install '.[ray]'")
        request.getfixturevalue("local_ray")
    return KINDS[request.param]


@pytest.fixture
def warm(kind, request):
    """Workers of Ray that have started before. Not for tests that harm them."""
    if kind is KINDS["ray"]:
        request.getfixturevalue("warm_ray")


@pytest.fixture
def executor(kind, warm):
    """Makes an executor of this kind, and closes it in the end."""
    with contextlib.ExitStack() as stack:

        def start(trainer, clients):
            made = kind(trainer, clients)
            stack.callback(made.close)
            return made

        yield start


# -- jobs --------------------------------------------------------------------------------------------------


def given(sizes):
    random = torch.Generator().manual_seed(1)
    return Given(
        {
            client: (torch.randn(n, 6, generator=random), torch.randint(3, (n,), generator=random))
            for client, n in enumerate(sizes)
        },
        torch.float32,
    )


def trainer(module=None, **local):
    if module is None:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    options = {"batch_size": 4, "epochs": 2, "lr": 0.05} | local
    return Trainer(FlatModule(module), MultiClass(), td.SCAFFOLD(), td.Local(**options))


def version(trainer, number):
    """The vectors of a version: another model for each number."""
    model = trainer.flat.vector + 0.1 * number
    return {"model": model, "control": torch.full_like(model, 0.01 * number)}


def job(trip, client, number, vectors, memory=None):
    task = Task(trip, client, number, vectors, 0.0)
    return TrainingJob(float(trip), task, client, memory or {}, seed=100 + trip)


def alone(trainer, clients, trip, client, number):
    """What a trip gives if nothing else is trained."""
    inline = Inline(trainer, clients)
    inline.submit(job(trip, client, number, version(trainer, number)))
    return inline.result(trip)


def check(kind, found, expected):
    """A result is the expected one: to the bit, or to rounding."""
    assert found.upload.vectors.keys() == expected.upload.vectors.keys()
    assert found.memory.keys() == expected.memory.keys()
    tolerance = {"rtol": 0, "atol": 0} if kind.exact else {"rtol": 1e-4, "atol": 1e-6}
    for ours, theirs in ((found.upload.vectors, expected.upload.vectors), (found.memory, expected.memory)):
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], **tolerance)
    assert (found.upload.examples, found.upload.steps) == (expected.upload.examples, expected.upload.steps)
    assert found.upload.loss == (expected.upload.loss if kind.exact else pytest.approx(expected.upload.loss))


def test_results_in_commit_order_whatever_the_order_of_submission_and_completion(kind, executor):
    sizes = [240, 4, 9, 4, 9, 4, 80, 4]  # the first trip takes the longest
    clients, trips = given(sizes), list(range(24))
    ours = executor(trainer(), clients)
    versions = {number: ours.publish(number, version(trainer(), number)) for number in range(2)}
    for trip in np.random.default_rng(5).permutation(trips).tolist():
        ours.submit(job(trip, trip % len(sizes), trip % 2, versions[trip % 2]))
    for trip in trips:
        check(kind, ours.result(trip), alone(trainer(), clients, trip, trip % len(sizes), trip % 2))


def test_memory_is_sent_and_returned(kind, executor):
    """A client's trips, each with what the one before it remembers. The memory outlives later results."""
    clients = given([8, 8, 8])
    ours, inline = executor(trainer(), clients), Inline(trainer(), clients)
    sent = ours.publish(0, version(trainer(), 1))
    memories, expected = [{}, {}, {}], [{}, {}, {}]
    for turn in range(3):
        for client in range(3):
            trip = 3 * turn + client
            ours.submit(job(trip, client, 0, sent, memories[client]))
            inline.submit(job(trip, client, 0, version(trainer(), 1), expected[client]))
        for client in range(3):
            found, wanted = ours.result(3 * turn + client), inline.result(3 * turn + client)
            check(kind, found, wanted)
            assert wanted.memory
            memories[client], expected[client] = found.memory, wanted.memory


def test_a_job_whose_training_diverges_gives_the_same_error_when_its_turn_comes(kind, executor):
    clients = given([8] * 6)
    clients.load(2)[0].fill_(float("nan"))
    ours = executor(trainer(), clients)
    sent = ours.publish(0, version(trainer(), 0))
    for trip in range(6):
        ours.submit(job(trip, trip, 0, sent))
    for trip in range(6):
        if trip == 2:
            with pytest.raises(td.RunError) as expected:
                alone(trainer(), clients, trip, trip, 0)
            with pytest.raises(td.RunError, match="trip 2 of client 2: the training loss is not") as found:
                ours.result(trip)
            assert str(found.value) == str(expected.value)
        else:  # the others are not affected
            check(kind, ours.result(trip), alone(trainer(), clients, trip, trip, 0))


class Wrong(torch.nn.Module):
    """Raises an error of its own when it is trained."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            raise LookupError("no such layer")
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:device.clients_at_once")
def test_an_error_of_the_users_code_names_the_trip_or_is_raised_as_it_is(kind, executor):
    ours = executor(trainer(Wrong()), given([8, 8]))
    sent = ours.publish(0, version(trainer(Wrong()), 0))
    for trip in range(2):
        ours.submit(job(trip, trip, 0, sent))
    if kind.workers:
        with pytest.raises(
            td.RunError, match=r"^trip 0 of client 0: LookupError: no such layer, at .*test_contract\.py:\d+$"
        ):
            ours.result(0)
    else:
        with pytest.raises(LookupError, match="no such layer"):
            ours.result(0)


def test_a_trip_that_was_never_submitted_is_a_key_error(executor):
    ours = executor(trainer(), given([8]))
    ours.publish(0, version(trainer(), 0))
    with pytest.raises(KeyError, match="5"):
        ours.result(5)


def test_versions_are_published_used_and_withdrawn(kind, executor):
    clients = given([4, 8])
    ours, live, trip = executor(trainer(), clients), {}, 0
    for number in range(40):
        live[number] = ours.publish(number, version(trainer(), number))
        for old in [old for old in live if old < number - 3]:
            ours.withdraw(old)
            del live[old]
        for start in (number, min(live)):
            ours.submit(job(trip, trip % 2, start, live[start]))
            check(kind, ours.result(trip), alone(trainer(), clients, trip, trip % 2, start))
            trip += 1
        for start, vectors in live.items():  # the ones that are in use have their values
            for name, vector in version(trainer(), start).items():
                assert torch.equal(vectors[name], vector)


def test_profile_has_the_seconds_of_workers_outside_this_process(kind, executor):
    measured = trainer()
    measured.profile.on = True
    ours = executor(measured, given([40, 40]))
    sent = ours.publish(0, version(trainer(), 0))
    assert ours.profile() == {}
    for trip in range(4):
        ours.submit(job(trip, trip % 2, 0, sent))
    for trip in range(4):
        ours.result(trip)
    if kind.workers:
        assert ours.profile().keys() == {"training", "data", "upload"}
        assert ours.profile()["training"] > 0
        assert "waiting for workers" in measured.profile.seconds
        assert kind.here or "training" not in measured.profile.seconds
    else:
        assert ours.profile() == {}
        assert measured.profile.seconds["training"] > 0


@CHOSEN
def test_the_profile_of_a_run_contains_that_of_its_executor(kind, warm):
    settings = SETTINGS | {"stop": td.Stop(trips=60), "device": {"clients_at_once": kind.at_once}}
    profile = td.run(workers=kind.workers, profile=True, **settings).profile
    workers = {name for name, seconds in profile.items() if name.startswith("workers: ") and seconds > 0}
    assert ("workers: training" in workers) == bool(kind.workers)
    assert ("training" in profile) == kind.here
    assert ("waiting for workers" in profile) == bool(kind.workers)


def test_closing_twice_and_closing_unused(executor):
    unused = executor(trainer(), given([8]))
    unused.close()
    unused.close()
    ours = executor(trainer(), given([8]))
    sent = ours.publish(0, version(trainer(), 0))
    for trip in range(9):
        ours.submit(job(trip, 0, 0, sent))
    ours.result(0)
    ours.close()
    ours.close()


class Moody(torch.nn.Module):
    """Has buffers that change in training, and draws random numbers for some clients only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += x.mean()
            if x.mean() > 0:
                x = torch.nn.functional.dropout(x, 0.5)
        return self.layer(x) + self.seen


@pytest.mark.filterwarnings("ignore:device.clients_at_once")
def test_buffers_of_a_module_do_not_pass_from_trip_to_trip(kind, executor):
    clients = given([8] * 6)
    ours = executor(trainer(Moody()), clients)
    sent = ours.publish(0, version(trainer(Moody()), 0))
    for trip in range(12):
        ours.submit(job(trip, trip % 6, 0, sent))
    for trip in range(12):
        check(kind, ours.result(trip), alone(trainer(Moody()), clients, trip, trip % 6, 0))


# -- whole runs --------------------------------------------------------------------------------------------

CASES = ["asynchronous", "individual uploads", "give up", "over-selection", "memory", "memory, opening"]
"""Of `test_engine`."""


def agree(kind, found, expected):
    """The events of two runs, and their final states."""
    if kind.exact:
        assert found == expected
        return
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            near = pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
            assert ours[name] == near, name


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_bits_of_inline(kind, warm, case):
    simulation = make(case, kind)
    try:
        agree(kind, finish(simulation), uninterrupted(case))
    finally:
        simulation.executor.close()


@pytest.mark.parametrize("case", ["give up", "memory"])
def test_a_run_is_resumed_with_another_executor(kind, warm, case):
    whole, bits = uninterrupted(case)
    before = make(case, kind)
    seen, snapshot = interrupted(before, commits=25)
    middle = make(case)
    middle.engine.restore(*snapshot)
    more = 0
    for number, events in enumerate(middle.engine.run()):
        more += len(events)
        if number == 25:
            break
    snapshot = frozen(middle.engine.snapshot())
    before.executor.close()
    after = make(case, kind)
    after.engine.restore(*snapshot)
    try:
        agree(kind, finish(after), (whole[seen + more :], bits))
    finally:
        after.executor.close()


# -- workers -----------------------------------------------------------------------------------------------

SETTINGS = {
    "pace": td.Asynchronous(concurrency=40),
    "local": td.Local(batch_size=8, lr=0.1),
    "stop": td.Stop(trips=300),
    "evaluation": td.Evaluation(every_steps=20),
}


@pytest.fixture(scope="module")
def inline():
    return td.run(**SETTINGS)


def harm(kind, how, when=150):
    """Run with two workers elsewhere and do something to them in the middle; return the simulation."""
    simulation = build(td.Config(**SETTINGS), workers=kind.workers)
    executor, harmed = simulation.executor, []
    try:
        for _ in simulation.engine.run():
            if simulation.engine.trips == when and not harmed:
                while not all(worker.ready for worker in executor._workers):
                    executor._listen()
                harmed += how(executor._workers)
        assert harmed
        assert not [worker for worker in harmed if worker in executor._workers], "they were not replaced"
        assert len(executor._workers) == 2
        pids = [worker.pid for worker in executor._workers]
    finally:
        executor.close()
    wait_for(lambda: not any(alive(pid) for pid in pids if pid is not None))
    return simulation


def same_model(simulation, result):
    return torch.equal(simulation.model, torch.cat([v.reshape(-1) for v in result.model.values()]))


def wait_for(what, seconds=300.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("kind", "number"), [("processes", 1), ("processes", 2), ("ray", 1)], indirect=["kind"], scope="module"
)
def test_workers_that_are_killed_are_replaced(kind, inline, number):
    def kill(workers):
        for worker in workers[:number]:
            os.kill(worker.pid, signal.SIGKILL)
        return workers[:number]

    assert same_model(harm(kind, kill), inline)
    if kind is KINDS["ray"]:  # to start one takes some seconds, so this is the only test that looks
        wait_for(lambda: ray.available_resources().get("CPU") == 2)  # no worker is left on the cluster


@WITH_WORKERS
def test_a_worker_that_hangs_is_replaced(kind, inline, monkeypatch):
    monkeypatch.setattr(dispatch, "SILENCE_SECONDS", 2.0)  # in which the other one gets some processor time
    stopped, hangs = [], Dispatcher._hangs

    def asked(dispatcher, worker):
        hung = hangs(dispatcher, worker)
        if hung and worker in stopped:
            monkeypatch.setattr(dispatch, "SILENCE_SECONDS", 600.0)
        return hung

    def stop(workers):
        os.kill(workers[0].pid, signal.SIGSTOP)
        stopped.append(workers[0])
        return stopped

    monkeypatch.setattr(Dispatcher, "_hangs", asked)
    assert same_model(harm(kind, stop), inline)


class Slow(torch.nn.Module):
    """Computes, when it is trained, until a file exists."""

    def __init__(self, file):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.file = file

    def forward(self, x):
        while self.training and not self.file.exists():
            pass
        return self.layer(x.flatten(1))


@WITH_WORKERS
def test_a_worker_that_computes_for_long_is_left_alone(kind, warm, monkeypatch, tmp_path):
    monkeypatch.setattr(dispatch, "SILENCE_SECONDS", 2.0)
    asked, hangs, file = [], Dispatcher._hangs, tmp_path / "asked"

    def ask(*given):
        asked.append(hangs(*given))
        file.touch()
        monkeypatch.setattr(dispatch, "SILENCE_SECONDS", 600.0)
        return asked[-1]

    monkeypatch.setattr(Dispatcher, "_hangs", ask)
    result = td.run(model=Slow(file), workers=kind.workers, **SETTINGS | {"stop": td.Stop(trips=20)})
    assert result.client_trips == 20
    assert asked
    assert not any(asked)


class Deadly(torch.nn.Module):
    """Kills the process that trains it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x):
        if self.training and self.kills(x):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x.flatten(1))

    def kills(self, x):
        return True


@FORKED
def test_model_that_kills_every_worker_is_reported_in_one_sentence(kind):
    assert dispatch.TRIES == 3
    with pytest.raises(td.RunError, match=r"a worker died 3 times with trip \d+ of client \d+ in hand \("):
        td.run(model=Deadly(), workers=kind.workers, **SETTINGS)


class DeadlyForOne(Deadly):
    """Kills the process that trains it with the examples of one client."""

    def kills(self, x):
        return bool((x > 1e6).any())


def only_workers(trainer, clients, workers):
    """Like `process_executor`, but this process trains nothing."""
    return Dispatcher(ForkedWorkers(trainer, clients, workers), workers, FLOW, trainer.profile)


@WITH_WORKERS
def test_the_trip_that_kills_workers_is_the_one_that_is_named(kind, monkeypatch):
    monkeypatch.setattr(dispatch, "TRIES", 2)
    monkeypatch.setattr(choose, "process_executor", only_workers)  # this process must not be killed
    clients = {client: (torch.rand(8, 64), torch.randint(10, (8,))) for client in range(400)}
    clients[33][0].fill_(2e6)  # drawn when many trips are under way
    own = {"model": DeadlyForOne(), "clients": clients, "test": clients[0]}
    with pytest.raises(td.RunError, match=r"a worker died 2 times with trip \d+ of client 33 in hand \("):
        td.run(workers=kind.workers, **own, **SETTINGS | {"stop": td.Stop(trips=3000)})


@WITH_WORKERS
def test_a_run_that_diverges_says_the_same(kind, warm):
    diverging = SETTINGS | {"local": td.Local(lr=1e30)}
    said = []
    for workers in (0, kind.workers):
        with pytest.raises(td.RunError) as error:
            td.run(workers=workers, **diverging)
        said.append(str(error.value))
    assert said[0] == said[1]


@WITH_WORKERS
def test_snapshots_do_not_depend_on_the_workers(kind, warm, tmp_path, inline):
    for resume, workers in ((False, kind.workers), (True, 0)):
        stop = (InterruptAfter(100),)
        with pytest.raises(KeyboardInterrupt):
            td.run(out=tmp_path / "run", resume=resume, workers=workers, observers=stop, **SETTINGS)
    result = td.run(out=tmp_path / "run", resume=True, workers=kind.workers, **SETTINGS)
    assert result.model_sha256 == inline.model_sha256
    assert result.history == inline.history


@FORKED
def test_no_worker_is_left_after_closing_in_the_midst_of_a_run(kind):
    simulation = build(td.Config(**SETTINGS), workers=kind.workers)
    run, executor = simulation.engine.run(), simulation.executor
    for _ in range(50):
        next(run)
    while not all(worker.ready for worker in executor._workers):
        executor._listen()
    pids = [worker.pid for worker in executor._workers]
    assert [alive(pid) for pid in pids] == [True, True]
    executor.close()
    wait_for(lambda: [alive(pid) for pid in pids] == [False, False])


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@WITH_WORKERS
def test_buffers_and_dropout_of_a_run(kind, warm):
    class Digits(Moody):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.utils.spectral_norm(torch.nn.Linear(64, 10))

        def forward(self, x):
            return super().forward(x.flatten(1) - 4.9)

    model = Digits()
    results = [td.run(model=model, workers=workers, **SETTINGS) for workers in (0, kind.workers)]
    assert results[0].model_sha256 == results[1].model_sha256
    assert float(results[0].model["seen"]) == 0.0
