"""Seeds, keys and noise of a helper: used once, and erased."""

import numpy as np
import pytest
import secure_world
from secure_world import NUMBERS, World, closing, refusals, refused

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_refusals import RESEAL, RefusalKind
from tardigrad.secure.integer_noise import IntegerNoise
from tardigrad.secure.policy import HelperNoise

NOISE = HelperNoise(
    mechanism=td.Independent(), deviation=500.0, steps=4, allowed=3, noise_multiplier=1.0, epsilon=1.0,
    delta=1e-5, seed=3,
)  # fmt: skip


def test_old_keys_are_erased_and_clients_are_told_to_seal_again(world, state, tmp_path):
    old = world.offer([state], "dan")
    older = world.offer([state], "fay")
    world.round([state], 0)
    assert refusals(state.admit([old])) == [""]  # the key before can still be opened
    trips = [old.trip]
    more = [world.offer([state], name, 1) for name in ("ann", "bob")]
    state.admit(more)
    trips += [one.trip for one in more]
    total = world.masked_sum(2, trips) - state.close(*closing(world, 2, trips))
    new = world.stepped(1, total, 3)
    state.publish(2, digest_of(new), total, new)
    assert refusals(state.admit([older])) == [RESEAL]
    assert refusals(state.admit([older], check_only=True)) == [RESEAL]
    version, codes, _ = world.uploads[older.trip]
    again = world.offer([state], "fay", version, trip=older.trip, codes=codes)
    assert refusals(state.admit([again])) == [""]


def test_key_is_kept_as_long_as_it_may_be(world, tmp_path):
    now = 1000.0
    with world.open(tmp_path / "helper", key_seconds=60.0, now=lambda: now) as state:
        first = state.key.key_id
        world.round([state], 0)
        assert state.key.key_id == first
        now += 60.0
        world.round([state], 1)
        assert state.key.key_id != first


def test_seeds_keys_noise_and_releases_are_erased_from_the_disk(tmp_path):
    """They are looked for in all bytes of the folder."""
    world = World(noise=NOISE.model_copy(update={"mechanism": td.Tree()}))
    with world.open(tmp_path / "helper") as state:
        trips = world.filled([state])
        secrets = list(state._database.seeds(1).values())
        secrets += [one.private for one in state._database.sealing_keys()]
        release = state.close(*closing(world, 1, trips))
        secrets += [state._run.noise.state["nodes"].numpy().tobytes(), release.tobytes()]

        def on_disk():
            files = [file.read_bytes() for file in (tmp_path / "helper").rglob("*") if file.is_file()]
            return [any(secret in content for content in files) for secret in secrets]

        assert on_disk() == [True] * 6
        total = world.masked_sum(1, trips) - release
        new = world.stepped(0, total, 3)
        state.publish(1, digest_of(new), total, new)
        assert on_disk() == [False] * 3 + [True, True, False]  # what is needed for the next batch
        world.round([state], 1)
        assert on_disk() == [False] * 6


def test_release_depends_on_the_seeds_and_on_nothing_else_of_the_uploads(tmp_path, monkeypatch):
    """What a helper gives away, and what it keeps but for digests, is the same whatever clients upload."""
    releases, kept = [], []
    for seed in range(2):
        world = World(seed=seed)
        seeds = iter([bytes([number]) * 32 for number in range(3)])
        monkeypatch.setattr(secure_world, "new_seeds", lambda count, seeds=seeds: (next(seeds),))
        with world.open(tmp_path / str(seed)) as state:
            trips = world.filled([state])
            releases.append(state.close(*closing(world, 1, trips)).tolist())
            kept.append(([one for one, _ in state.places()], state._database.seeds(1)))
    assert releases[0] == releases[1]
    assert kept[0] == kept[1]
    assert world.code_sum(1, trips).any()


@pytest.mark.parametrize("mechanism", [td.Independent(), td.Tree()], ids=lambda one: one.kind)
def test_noise_is_that_of_the_policy_over_restarts(mechanism, tmp_path):
    noise = NOISE.model_copy(update={"mechanism": mechanism})
    world = World(helpers=2, noise=noise)
    expected = [IntegerNoise(noise, NUMBERS, helper) for helper in range(2)]
    for version in range(3):
        opened = world.reopened if version else world.open
        states = [opened(tmp_path / str(number), number) for number in range(2)]
        trips, total, _ = world.round(states, version)
        drawn = sum(one.draw(version) for one in expected)
        assert total.tolist() == (world.code_sum(version + 1, trips) + drawn).tolist()
        for state in states:
            state.__exit__()


def test_steps_beyond_the_budget_are_refused(tmp_path):
    world = World(noise=NOISE)
    with world.open(tmp_path / "helper") as state:
        for version in range(3):
            world.round([state], version)
        request = closing(world, 4, world.filled([state], 3))
        refused(RefusalKind.BUDGET, "allows 3 steps", state.close, *request)


def test_noise_of_an_abandoned_batch_is_dropped(tmp_path):
    """Otherwise the steps of one client would be closer together in the noise than the limits say."""
    world = World(noise=NOISE, staleness=td.Exponential(a=5.0))
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
        world.filled([state], 1, starts=[0, 0, 1])
        state.abandon(2)
        world.models[2] = world.models[1]
        trips, total, _ = world.round([state], 2)
    drawn = IntegerNoise(NOISE, NUMBERS).draw(2)
    assert total.tolist() == (world.code_sum(3, trips) + drawn).tolist()


def test_noise_of_the_system_is_drawn_once(tmp_path):
    world = World(
        noise=NOISE.model_copy(update={"seed": None, "epsilon": 1e9}), norm=5.0, limits=Limits(9, 1)
    )
    with world.open(tmp_path / "helper") as state:
        request = closing(world, 1, trips := world.filled([state]))
        release = state.close(*request)
    with world.reopened(tmp_path / "helper") as state:
        assert np.array_equal(state.close(*request), release)
    noise = (world.masked_sum(1, trips) - release).view(np.int32) - world.code_sum(1, trips)
    assert np.abs(noise).max() > 0
