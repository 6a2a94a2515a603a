"""A run with one helper."""

import pytest
from secure_world import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def state(world, tmp_path):
    with world.open(tmp_path / "helper") as found:
        yield found
