"""Submissions: a trip is submitted when its version and the memory of its client exist, and not before."""

import pytest
import torch

from tardigrad.core.draws import key
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.upload import Upload
from tardigrad.simulation.executors.protocol import TrainedTrip
from tardigrad.simulation.live_versions import LiveVersions
from tardigrad.simulation.submissions import Submissions

SEED = 5


class Counting:
    """An executor whose clients remember how many of their trips were trained."""

    def __init__(self):
        self.jobs = {}

    def publish(self, version, vectors):
        return vectors

    def submit(self, job):
        self.jobs[job.task.trip] = job

    def result(self, trip):
        job = self.jobs[trip]
        count = job.memory.get("count", torch.zeros(1)) + 1
        return TrainedTrip(Upload({"delta": count}, 1, 1, 0.0), {"count": count})


def planned(trip, client, version, arrival=9):
    """The plan of a trip that starts from `version` and arrives at the version `arrival`."""
    ticket = Ticket(trip, client, version, 0.0)
    return Accepted(ticket, time=float(trip), version=arrival, weight=1.0, mass=1.0, closes=False)


@pytest.fixture
def executor():
    return Counting()


@pytest.fixture
def versions(executor):
    """Version 0 exists."""
    versions = LiveVersions(executor)
    versions.publish(0, {"model": torch.zeros(2)})
    return versions


def commit(submissions, trip):
    upload, task = submissions.collect(trip)
    submissions.committed(trip)
    return upload, task


def test_trip_is_submitted_at_once_if_its_version_exists(executor, versions):
    submissions = Submissions(executor, versions, remembers=False, seed=SEED)
    submissions.plan(planned(3, client=1, version=0, arrival=4))
    job = executor.jobs[3]
    assert (job.client, job.time, job.seed, job.memory) == (1, 3.0, key(SEED, "trip", 3), {})
    assert (job.task.trip, job.task.version, job.task.staleness) == (3, 0, 4.0)
    assert job.task.vectors is versions[0]


def test_trip_waits_for_its_version(executor, versions):
    submissions = Submissions(executor, versions, remembers=False, seed=SEED)
    submissions.plan(planned(0, client=1, version=1))
    assert not executor.jobs
    versions.publish(1, {"model": torch.ones(2)})
    submissions.published(1)
    assert executor.jobs[0].task.vectors is versions[1]


def test_trip_waits_for_the_earlier_trip_of_its_client_only_if_clients_remember(executor, versions):
    trips = [planned(number, client=1, version=0) for number in range(3)]
    forgetful = Submissions(executor, versions, remembers=False, seed=SEED)
    for trip in trips:
        forgetful.plan(trip)
    assert list(executor.jobs) == [0, 1, 2]

    executor.jobs.clear()
    remembering = Submissions(executor, versions, remembers=True, seed=SEED)
    for trip in [*trips, planned(3, client=2, version=0)]:
        remembering.plan(trip)
    assert list(executor.jobs) == [0, 3]
    for number, trip in enumerate(trips):
        upload, _ = commit(remembering, trip)
        assert upload.vectors["delta"].item() == number + 1  # trained with the memory of the trip before
    assert remembering.memories[1]["count"].item() == 3


def test_memory_is_not_kept_if_clients_do_not_remember(executor, versions):
    submissions = Submissions(executor, versions, remembers=False, seed=SEED)
    trip = planned(0, client=1, version=0)
    submissions.plan(trip)
    commit(submissions, trip)
    assert submissions.memories == {}


def test_length_is_the_number_of_trips_that_are_planned_and_not_committed(executor, versions):
    submissions = Submissions(executor, versions, remembers=False, seed=SEED)
    trips = [planned(0, 1, version=0), planned(1, 2, version=0), planned(2, 3, version=1)]
    for count, trip in enumerate(trips, 1):
        submissions.plan(trip)
        assert len(submissions) == count
    commit(submissions, trips[0])
    assert len(submissions) == 2
