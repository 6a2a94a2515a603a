"""A helper's decisions."""

import pytest
from secure_world import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def state(world, tmp_path):
    with world.open(tmp_path / "helper") as found:
        yield found


@pytest.mark.parametrize("helpers", [1, 2])
def test_released_sum_is_the_weighted_sum_of_codes(helpers, tmp_path):
    world = World(helpers)
    states = [world.open(tmp_path / str(number), number) for number in range(helpers)]
    for version in range(3):
        starts = [max(0, version - late) for late in range(3)]
        trips, total, receipts = world.round(states, version, starts=starts)
        assert total.tolist() == world.code_sum(version + 1, trips).tolist()
        assert len({one.receipt for one in receipts}) == 1
    for state in states:
        state.__exit__()
