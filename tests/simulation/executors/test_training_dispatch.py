"""The dispatcher whose own process trains too. `test_contract` has what all executors promise."""

import os

import pytest
import torch
from test_contract import DeadlyForOne, given, job, trainer, version

import tardigrad as td
from tardigrad.simulation.executors import dispatch
from tardigrad.simulation.executors.processes import process_executor


class WhereRule(td.Rule):
    """Uploads the number of the process that trained, and the model where training ended."""

    def finish(self, end, steps, path):
        return {"delta": torch.tensor([float(os.getpid())], dtype=torch.float64), "end": end}


class Where(td.SumOnly):
    def rule(self, task, memory, lr):
        return WhereRule(task, memory, lr)

    def step(self, state, buffer):
        return {}


@pytest.fixture
def started():
    """An executor of this process and one worker that has answered once, and its published version 0."""
    made = []

    def start(own, clients):
        made.append(process_executor(own, clients, 2))
        sent = made[0].publish(0, version(own, 0))
        made[0].submit(job(0, 0, 0, sent))
        made[0].result(0)
        return made[0], sent

    yield start
    made[0].close()


def where_trainer():
    own = trainer()
    own.algorithm = Where()
    return own


def process_of(result):
    return int(result.upload.vectors["delta"])


def test_a_trip_that_is_needed_now_is_trained_here_if_no_worker_has_it(started):
    executor, sent = started(where_trainer(), given([8]))
    for trip in range(1, 4):
        executor.submit(job(trip, 0, 0, sent))
        assert process_of(executor.result(trip)) == os.getpid()


def test_nothing_is_trained_here_before_a_worker_has_answered():
    executor = process_executor(where_trainer(), given([8]), 2)
    try:
        executor.submit(job(0, 0, 0, executor.publish(0, version(trainer(), 0))))
        assert process_of(executor.result(0)) == executor._workers[0].pid
    finally:
        executor.close()


def test_worker_and_this_process_share_the_trips_and_results_that_wait_are_not_overwritten(started):
    own, clients = where_trainer(), given([8, 12, 40])
    executor, sent = started(own, clients)
    for trip in range(1, 60):
        executor.submit(job(trip, trip % 3, 0, sent))
    processes = set()
    alone = process_executor(where_trainer(), clients, 2)  # trains one trip at a time
    try:
        there = alone.publish(0, version(own, 0))
        for trip in range(1, 60):
            found = executor.result(trip)
            processes.add(process_of(found))
            ends = found.upload.vectors["end"].clone()
            alone.submit(job(trip, trip % 3, 0, there))
            assert torch.equal(ends, alone.result(trip).upload.vectors["end"])
    finally:
        alone.close()
    assert processes == {os.getpid(), executor._workers[0].pid}


def test_a_trip_that_has_lost_a_worker_is_never_trained_here(started, monkeypatch):
    monkeypatch.setattr(dispatch, "TRIES", 2)
    clients = given([8, 8, 8])
    clients.load(1)[0].fill_(2e6)
    module = DeadlyForOne()
    module.layer = torch.nn.Linear(6, 3)
    executor, sent = started(trainer(module), clients)
    for trip, client in ((1, 0), (2, 1), (3, 2)):  # the first is trained here, and the second sent
        executor.submit(job(trip, client, 0, sent))
    executor.result(1)
    with pytest.raises(td.RunError, match=r"a worker died 2 times with trip 2 of client 1 in hand \("):
        executor.result(2)
