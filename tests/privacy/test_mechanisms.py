"""Every kind of noise: what it adds, how much, and that it can be stopped and resumed."""

import copy
import itertools
import json
import math

import numpy as np
import pytest
import torch

from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.blt import BLT, constants, most_steps
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
def test_what_is_released_is_made_from_the_noisy_sums_that_are_accounted_for(noise):
    # x + D z = D (C x + z) for every x: that and nothing else makes the sensitivity of C the right one.
    D, C = decoder(noise, STEPS), encoder(noise, STEPS)
    assert D.shape == C.shape[::-1]
    np.testing.assert_allclose(D @ C, np.eye(STEPS), atol=2e-6)


@each_kind
def test_prefixes_have_the_variance_that_theory_gives(noise):
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
def test_what_was_drawn_is_the_callers(noise):
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


def test_tree_sensitivity_of_long_runs():
    assert Tree().sensitivity(2048, 1, 1) ** 2 == pytest.approx(12)
    assert Tree().sensitivity(2048, 4, 512) ** 2 == pytest.approx(64)
    assert Tree().sensitivity(2048, 8, 256) ** 2 == pytest.approx(184)
    assert Tree(restart_every=512).sensitivity(2048, 1, 1) ** 2 == pytest.approx(10)
    assert Tree(restart_every=512).sensitivity(2048, 4, 512) ** 2 == pytest.approx(40)


def test_memory_of_noise():
    assert Tree().start(10, 2047, 1, 1)["nodes"].shape == (11, 10)
    assert Tree().start(10, 2048, 1, 1)["nodes"].shape == (12, 10)
    assert Tree(restart_every=512).start(10, 2048, 1, 1)["nodes"].shape == (10, 10)
    assert BLT().start(10, 2048, 1, 1)["buffers"].shape == (3, 10)


def test_honaker_is_the_published_stack():
    # Push (0, z); while the two top heights are equal, pop both and push (h + 1, z + (l + r) / 2).
    noise, state, total = Tree(), Tree().start(3, 40, 1, 1), torch.zeros(3)
    stack = []
    for t in range(40):
        total += noise.draw(state, Seeded(t))
        normal = Seeded(t)
        stack.append((0, normal(3)))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            (height, right), (_, left) = stack.pop(), stack.pop()
            stack.append((height + 1, normal(3) + (left + right) / 2))
        prefix = sum(value / (2 - 2.0**-height) for height, value in stack)
        torch.testing.assert_close(total, prefix, atol=1e-5, rtol=1e-5)


# -- BLT ---------------------------------------------------------------------------------------------


def test_blt_is_the_published_matrix():
    blt = BLT().toeplitz(2048, 1, 2048)
    assert blt.sensitivity(2048, 1, 1) == pytest.approx(1.864702, abs=1e-4)
    assert blt.loss(2048, 1, 1) == pytest.approx(3.503422, abs=1e-6)
    decay = [0.9994301928390279, 0.9861913147789118, 0.7890162272135033]
    scale = [0.033605100332528226, 0.10490397921006192, 0.3248833082629709]
    expected = [1.0, *(np.array(scale) @ np.power.outer(decay, np.arange(2047)))]
    np.testing.assert_allclose(blt.coefficients(2048), expected, atol=1e-4)


def test_blt_constants_are_valid_and_as_good_as_they_say():
    rows = constants()
    assert {row["steps"] for row in rows} == {2**i for i in range(6, 15)}
    assert {row["participations"] for row in rows} == {1, 2, 4, 8, 16, 32}
    for row in rows:
        steps, limits = row["steps"], (row["steps"], row["participations"], row["separation"])
        blt = BLT().toeplitz(*limits)
        for number in [*row["inverse_decay"], *row["inverse_scale"]]:
            assert number == float(np.float32(number))
        column, inverse = blt.coefficients(steps), blt.inverse_coefficients(steps)
        assert (column > 0).all()
        assert (np.diff(column) < 0).all()
        product = np.convolve(column, inverse)[:steps]  # C C^-1
        assert product[0] == pytest.approx(1)
        assert np.abs(product[1:]).max() < 1e-9
        assert blt.loss(*limits) <= row["loss"] + 1e-6
        tree = Tree().sensitivity(*limits) * math.sqrt(
            max(Tree().prefix_variance(t, *limits) for t in range(steps - steps // 2, steps + 1))
        )
        assert blt.loss(*limits) < tree


@pytest.mark.parametrize("limits", [(100, 3, 20), (1500, 5, 200), (3000, 1, 1), (8000, 20, 300), (1, 1, 1)])
def test_blt_between_the_rows(limits):
    # Limits that no row was made for: not worse than a run twice as long, nor than the tree.
    steps, participations, separation = limits
    blt, longer = BLT().toeplitz(*limits), (2 * steps, participations, separation)
    assert blt.sensitivity(*limits) == BLT().sensitivity(*limits)
    assert blt.loss(*limits) <= BLT().toeplitz(*longer).loss(*longer)
    worst = max(Tree().prefix_variance(t, *limits) for t in range(1, steps + 1))
    assert blt.loss(*limits) <= Tree().sensitivity(*limits) * math.sqrt(worst)


def test_blt_says_how_many_steps_it_has_constants_for():
    with pytest.raises(ConfigError, match="at most 16384 steps"):
        BLT().sensitivity(most_steps() + 1, 1, 1)
