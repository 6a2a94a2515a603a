"""Live versions: published once, kept while a trip needs them, and withdrawn from the executor."""

import pytest
import torch

from tardigrad.simulation.live_versions import LiveVersions


class Copies:
    """An executor as far as versions are concerned: it stores copies."""

    def __init__(self):
        self.stored = {}

    def publish(self, version, vectors):
        assert version not in self.stored
        self.stored[version] = {name: vector.clone() for name, vector in vectors.items()}
        return self.stored[version]

    def withdraw(self, version):
        del self.stored[version]


@pytest.fixture
def executor():
    return Copies()


@pytest.fixture
def versions(executor):
    """Versions 0 to 3, none of which is needed."""
    versions = LiveVersions(executor)
    for version in range(4):
        versions.publish(version, {"model": torch.full((2,), float(version))})
    return versions


def test_vectors_are_those_that_the_executor_stores(versions, executor):
    assert versions[2] is executor.stored[2]
    assert versions[2]["model"].tolist() == [2.0, 2.0]


def test_version_is_kept_until_no_trip_needs_it(versions, executor):
    versions.need(1)
    versions.need(1)
    versions.discard_before(3)
    assert set(versions) == set(executor.stored) == {1, 3}
    versions.need(1, -1)
    versions.discard_before(3)
    assert set(versions) == {1, 3}
    versions.need(1, -1)
    versions.discard_before(3)
    assert set(versions) == set(executor.stored) == {3}


def test_version_that_clients_can_start_from_is_kept_without_trips(versions):
    versions.discard_before(2)
    assert set(versions) == {2, 3}


def test_version_can_be_needed_before_it_is_published(versions):
    versions.need(4)
    assert 4 not in versions
    versions.publish(4, {"model": torch.zeros(2)})
    versions.discard_before(9)
    assert set(versions) == {4}


def test_restored_versions_replace_all_others_and_are_kept_for_their_trips(versions, executor):
    stored = {5: {"model": torch.ones(2)}, 6: {"model": torch.zeros(2)}}
    versions.restore(stored, needed=[5, 5, 7])
    assert set(versions) == set(executor.stored) == {5, 6}
    versions.need(5, -1)
    versions.discard_before(9)
    assert set(versions) == {5}
    versions.need(5, -1)
    versions.discard_before(9)
    assert not versions
