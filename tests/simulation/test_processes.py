"""Training in several processes: the same bits, whatever happens to a worker."""

import os
import signal
import threading
import time

import pytest
import torch

import tardigrad as td
from observers import InterruptAfter
from tardigrad.experiments.run import build
from tardigrad.simulation import processes

SETTINGS = {
    "pace": td.Asynchronous(concurrency=40),
    "local": td.Local(batch_size=4, epochs=4),
    "stop": td.Stop(trips=600),
    "evaluation": td.Evaluation(every_steps=20),
}


@pytest.fixture(scope="module")
def inline():
    return td.run(**SETTINGS)


def harm(how, when=0.4):
    """Run with two workers, do something to them in the middle; the simulation and its final model."""
    simulation = build(td.Config(**SETTINGS), workers=2)
    harmed = []

    def strike():
        while not simulation.executor._workers:
            time.sleep(0.01)
        time.sleep(when)
        harmed.extend(how([worker.process.pid for worker in simulation.executor._workers]))

    threading.Thread(target=strike, daemon=True).start()
    try:
        for _ in simulation.engine.run():
            pass
    finally:
        simulation.executor.close()
    assert harmed, "it was over before anything could happen"
    return simulation


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


@pytest.mark.parametrize("number", [1, 2])
def test_workers_that_are_killed_are_replaced(inline, number):
    simulation = harm(lambda pids: kill(pids[:number]))
    assert torch.equal(simulation.model, torch.cat([v.reshape(-1) for v in inline.model.values()]))


def test_a_worker_that_hangs_is_replaced(inline, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 1.0)

    def stop(pids):
        os.kill(pids[0], signal.SIGSTOP)
        return pids[:1]

    simulation = harm(stop)
    assert torch.equal(simulation.model, torch.cat([v.reshape(-1) for v in inline.model.values()]))


class Deadly(torch.nn.Module):
    """Kills the process that trains it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x):
        if self.training:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x.flatten(1))


def test_a_model_that_kills_every_worker_is_given_up_with_a_sentence():
    with pytest.raises(td.RunError, match=r"a worker died 3 times with trip \d+ of client \d+ in hand"):
        td.run(model=Deadly(), workers=2, **SETTINGS)


def test_an_error_on_a_worker_is_told_as_if_it_had_happened_here():
    diverging = SETTINGS | {"local": td.Local(lr=1e30)}
    said = []
    for workers in (0, 2):
        with pytest.raises(td.RunError) as error:
            td.run(workers=workers, **diverging)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_snapshots_do_not_depend_on_the_number_of_workers(tmp_path, inline):
    for workers in (2, 0, 2):
        resume = (tmp_path / "run").exists()
        try:
            result = td.run(
                out=tmp_path / "run",
                resume=resume,
                workers=workers,
                observers=(InterruptAfter(200),),
                **SETTINGS,
            )
        except KeyboardInterrupt:
            result = td.run(out=tmp_path / "run", resume=True, workers=workers, **SETTINGS)
    assert result.model_sha256 == inline.model_sha256
    assert result.history == inline.history


def test_nobody_is_left_behind():
    simulation = build(td.Config(**SETTINGS), workers=2)
    run = simulation.engine.run()
    for _ in range(50):
        next(run)
    workers = [worker.process for worker in simulation.executor._workers]
    assert [worker.is_alive() for worker in workers] == [True, True]
    simulation.executor.close()
    assert [worker.is_alive() for worker in workers] == [False, False]


class Moody(torch.nn.Module):
    """Has buffers that change in training, and draws random numbers for some clients only."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.spectral_norm(torch.nn.Linear(64, 10))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.seen += x.mean()
            if x.mean() > 4.9:
                x = torch.nn.functional.dropout(x, 0.5)
        return self.layer(x) + self.seen


def test_what_a_module_keeps_from_trip_to_trip_does_not_show():
    torch.manual_seed(0)
    model = Moody()
    results = [td.run(model=model, workers=workers, **SETTINGS) for workers in (0, 1, 2)]
    assert len({result.model_sha256 for result in results}) == 1
    assert float(results[0].model["seen"]) == 0.0


def test_a_long_trip_is_not_taken_for_a_hanging_one(monkeypatch):
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 0.2)

    class Slow(torch.nn.Linear):
        def forward(self, x):
            until = time.process_time() + (1.0 if self.training else 0.0)
            while time.process_time() < until:
                pass
            return super().forward(x.flatten(1))

    few = SETTINGS | {
        "stop": td.Stop(trips=2),
        "buffer": td.Buffer(size=1),
        "pace": td.Asynchronous(concurrency=2),
    }
    few["local"] = td.Local(steps=1)
    assert td.run(model=Slow(64, 10), workers=1, **few).client_trips == 2
