"""All kinds of noise: matrices, variances, sensitivities, and that a run can be stopped and resumed."""

import copy
import itertools
import json
import math

import numpy as np
import pytest
import torch

from tardigrad.errors import RunError
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.noise import most_participations
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.tree import Tree

KINDS = [
    Independent(),
    Tree(),
    Tree(honaker=False),
    Tree(restart_every=5),
    Tree(honaker=False, restart_every=8),
    BLT(),
]
STEPS = 21
each_kind = pytest.mark.parametrize("noise", KINDS, ids=repr)


class Units:
    """Gives unit vectors for normals, one after the other, so that draws are rows of a matrix."""

    def __init__(self):
        self.given = 0

    def __call__(self, dimension):
        vector = torch.zeros(dimension)
        vector[self.given] = 1
        self.given += 1
        return vector


def decoder(noise, steps):
    """Row t: how step t's noise is made of the normals, in the order in which they were drawn."""
    units = Units()
    state = noise.start(2 * steps, steps, 2, 3)
    rows = torch.stack([noise.draw(state, units) for _ in range(steps)])
    return rows[:, : units.given].double().numpy()


def encoder(noise, steps, participations=2, separation=3):
    """C, written down independently: what a node of the tree sums, in the order of completion."""
    if isinstance(noise, Independent):
        return np.eye(steps)
    if isinstance(noise, BLT):
        column = noise.toeplitz(steps, participations, separation).coefficients(steps)
        return np.array([[column[t - s] if s <= t else 0.0 for s in range(steps)] for t in range(steps)])
    rows = []
    length = noise.restart_every or steps
    for t in range(steps):
        first = t - t % length  # of the tree
        size = 1
        while (t - first + 1) % size == 0 and size <= t - first + 1:
            rows.append([float(t - size < s <= t) for s in range(steps)])
            size *= 2
    return np.array(rows)


def schedules(steps, participations, separation):
    """All that a client is allowed, the largest ones suffice for matrices without negative entries."""
    count = most_participations(steps, participations, separation)
    for when in itertools.combinations(range(steps), count):
        if all(b - a >= separation for a, b in itertools.pairwise(when)):
            yield list(when)


def brute_force(C, participations, separation):
    steps = C.shape[1]
    return max(
        np.linalg.norm(C[:, when].sum(axis=1))
        for count in range(1, participations + 1)
        for when in schedules(steps, count, separation)
    )


@each_kind
def test_released_sums_follow_from_the_accounted_gaussian_release(noise):
    # x + D z = D (C x + z) for every x: that and nothing else makes the sensitivity of C the right one.
    D, C = decoder(noise, STEPS), encoder(noise, STEPS)
    assert D.shape == C.shape[::-1]
    np.testing.assert_allclose(D @ C, np.eye(STEPS), atol=2e-6)


@each_kind
def test_prefix_noise_has_the_stated_variance(noise):
    dimension = 20_000
    state = noise.start(dimension, STEPS, 2, 3)
    total = torch.zeros(dimension)
    for t in range(1, STEPS + 1):
        total += noise.draw(state, Seeded(1000 + t))
        expected = noise.prefix_variance(t, STEPS, 2, 3)
        assert float(total.var()) == pytest.approx(expected, rel=0.05)  # 1 % is one standard deviation
        assert abs(float(total.mean())) < 5 * math.sqrt(expected / dimension)


@each_kind
def test_prefix_variance_is_that_of_the_decoder(noise):
    prefixes = np.cumsum(decoder(noise, STEPS), axis=0)
    expected = [noise.prefix_variance(t, STEPS, 2, 3) for t in range(STEPS + 1)]
    np.testing.assert_allclose([0.0, *(prefixes**2).sum(axis=1)], expected, rtol=1e-5)


@each_kind
def test_a_resumed_run_draws_what_the_uninterrupted_one_draws(noise):
    state = noise.start(7, STEPS, 2, 3)
    for t in range(11):
        noise.draw(state, Seeded(t))
    numbers = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
    tensors = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    restored = json.loads(json.dumps(numbers)) | tensors
    for t in range(11, STEPS):
        assert torch.equal(noise.draw(state, Seeded(t)), noise.draw(restored, Seeded(t)))


@each_kind
def test_caller_may_change_what_was_drawn(noise):
    state = noise.start(7, STEPS, 2, 3)
    other = copy.deepcopy(state)
    for t in range(STEPS):
        noise.draw(state, Seeded(t)).zero_()
        drawn = noise.draw(other, Seeded(t))
    for name, value in state.items():
        assert (
            value == other[name] if not isinstance(value, torch.Tensor) else torch.equal(value, other[name])
        )
    assert drawn.abs().min() > 0


@each_kind
def test_more_steps_than_planned_are_refused(noise):
    state = noise.start(2, 3, 1, 1)
    for t in range(3):
        noise.draw(state, Seeded(t))
    with pytest.raises(RunError, match="planned for 3 steps"):
        noise.draw(state, Seeded(3))


@each_kind
@pytest.mark.parametrize("steps", [1, 2, 7, 8, 11, 12])
@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 1), (2, 3), (3, 2), (3, 4), (12, 2)])
def test_no_schedule_exceeds_the_sensitivity(noise, steps, participations, separation):
    C = encoder(noise, steps, participations, separation)
    worst = brute_force(C, participations, separation)
    claimed = noise.sensitivity(steps, participations, separation)
    assert worst <= claimed * (1 + 1e-9)
    if isinstance(noise, BLT | Independent) or (noise.restart_every is None and separation in (1, 2, 4)):
        assert claimed == pytest.approx(worst)  # tight, not only safe
    assert claimed <= 1.3 * worst


@each_kind
def test_signs_and_directions_do_not_help_the_attacker(noise):
    generator = np.random.default_rng(0)
    steps, participations, separation = 12, 3, 4
    C = encoder(noise, steps, participations, separation)
    claimed = noise.sensitivity(steps, participations, separation)
    for when in schedules(steps, participations, separation):
        x = np.zeros((steps, 3))
        x[when] = generator.normal(size=(len(when), 3))
        x[when] /= np.linalg.norm(x[when], axis=1, keepdims=True)
        assert np.linalg.norm(C @ x) <= claimed * (1 + 1e-9)


@each_kind
def test_sensitivity_grows_with_participations_and_steps_and_falls_with_separation(noise):
    def sensitivity(k, b, after):
        return noise.sensitivity(64, k, b, after)

    if not isinstance(noise, BLT):  # whose constants depend on k and b
        for b in (1, 3, 8, 30):
            values = [sensitivity(k, b, None) for k in (1, 2, 3, 8)]
            assert values == sorted(values)
        for k in (1, 2, 3, 8):
            values = [sensitivity(k, b, None) for b in (1, 3, 8, 30)]
            assert values == sorted(values, reverse=True)
    spent = [sensitivity(3, 8, after) for after in range(65)]
    assert spent == sorted(spent)
    assert spent[0] == 0
    assert spent[-1] == sensitivity(3, 8, None)


def test_noise_keeps_as_many_vectors_as_stated():
    assert Tree().start(10, 2047, 1, 1)["nodes"].shape == (11, 10)
    assert Tree().start(10, 2048, 1, 1)["nodes"].shape == (12, 10)
    assert Tree(restart_every=512).start(10, 2048, 1, 1)["nodes"].shape == (10, 10)
    assert BLT().start(10, 2048, 1, 1)["buffers"].shape == (3, 10)


# -- BLT ---------------------------------------------------------------------------------------------
