"""The integer noise of a helper: as large as promised, in every bit, and never drawn twice."""

import math

import numpy as np
import pytest
import scipy
import torch

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.privacy.blt import FixedBLT, Toeplitz
from tardigrad.secure.integer_noise import IntegerNoise, cell_of, largest_deviation, tail
from tardigrad.secure.policy import HelperNoise

LARGE = 2.0**28
"""A deviation for which float32 numbers reach only every 16th integer and less."""
MECHANISMS = [td.BLT(), td.Tree(), td.Tree(honaker=False), td.Independent()]


def helper_noise(deviation=LARGE, mechanism=None, steps=64, seed=1) -> HelperNoise:
    mechanism = mechanism or td.Independent()
    toeplitz = mechanism.toeplitz(steps, 1, 1) if isinstance(mechanism, td.BLT) else None
    return HelperNoise(
        mechanism=mechanism, toeplitz=toeplitz, deviation=deviation, steps=steps, allowed=steps,
        noise_multiplier=1.0, epsilon=1.0, delta=1e-7, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("deviation", [3.0, 1000.5, 2.0**21 + 1, LARGE])
def test_noise_is_normal_with_the_promised_deviation(deviation):
    drawn = IntegerNoise(helper_noise(deviation), 200_000).draw(0)
    assert drawn.dtype == np.int64
    assert abs(drawn.mean()) < 4 * deviation / math.sqrt(200_000)
    assert drawn.std() == pytest.approx(deviation, rel=0.02 if deviation < 10 else 0.008)
    if deviation > 100:
        assert scipy.stats.kstest(drawn / deviation, "norm").pvalue > 1e-4


def test_no_bit_of_a_number_is_without_noise():
    drawn = IntegerNoise(helper_noise(LARGE), 400_000).draw(0)
    for bits in (1, 4, 8):
        counts = np.bincount(drawn % 2**bits, minlength=2**bits)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_floats_alone_would_leave_the_last_bits_without_noise():
    rounded = np.rint(torch.randn(1000, generator=torch.Generator().manual_seed(1)).double().numpy() * LARGE)
    assert np.mean(rounded[np.abs(rounded) > LARGE] % 16 == 0) == 1.0


@pytest.mark.parametrize("deviation", [1.0, 2.0**20, 2.0**20 + 1, 1.7 * 2.0**20, LARGE + 3])
def test_cells_are_at_most_twice_as_wide_as_those_of_other_private_runs(deviation):
    cell = cell_of(deviation)
    assert deviation / cell <= 2.0**20
    assert cell == 1 or cell / deviation <= 2 * 2.0**-20


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_same_seed_gives_the_same_noise_and_another_helper_another(mechanism):
    noise = helper_noise(mechanism=mechanism)
    one, same, other = IntegerNoise(noise, 50), IntegerNoise(noise, 50), IntegerNoise(noise, 50, helper=1)
    for step in range(5):
        drawn = one.draw(step)
        assert np.array_equal(drawn, same.draw(step))
        assert not np.any(drawn == other.draw(step))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_restored_noise_goes_on_with_the_same_numbers(mechanism):
    noise = helper_noise(mechanism=mechanism)
    one, other = IntegerNoise(noise, 20), IntegerNoise(noise, 20)
    for step in range(5):
        one.draw(step)
    tensors, document = one.snapshot()
    other.restore({name: tensor.clone() for name, tensor in tensors.items()}, dict(document))
    assert np.array_equal(one.draw(5), other.draw(5))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_step_that_is_left_out_uses_its_noise_up(mechanism):
    noise = helper_noise(mechanism=mechanism)
    all_steps, some = IntegerNoise(noise, 20), IntegerNoise(noise, 20)
    drawn = [all_steps.draw(step) for step in range(4)]
    assert np.array_equal(some.draw(0), drawn[0])
    assert np.array_equal(some.draw(3), drawn[3])


def test_noise_of_a_step_is_not_drawn_twice():
    noise = IntegerNoise(helper_noise(seed=None), 5)
    noise.draw(0)
    with pytest.raises(RunError, match="noise of the step from version 0 was drawn before"):
        noise.draw(0)


def test_noise_of_the_system_differs_each_time():
    noise = helper_noise(seed=None)
    assert not np.array_equal(IntegerNoise(noise, 20).draw(0), IntegerNoise(noise, 20).draw(0))


@pytest.mark.parametrize("mechanism", [*MECHANISMS, td.Tree(restart_every=6)], ids=repr)
@pytest.mark.parametrize("steps", [1, 7, 16, 33])
def test_no_step_has_more_noise_than_the_largest_deviation(mechanism, steps):
    """Each step is a linear map of the normal numbers drawn so far, found here by drawing unit vectors."""
    count = 2 * steps  # a tree draws at most twice as many nodes as steps
    calls = iter(range(count))

    def unit(dimension):
        vector = torch.zeros(count)
        vector[next(calls)] = 1.0
        return vector

    state = mechanism.start(count, steps, 1, 1)
    found = max(float(mechanism.draw(state, unit).norm()) for _ in range(steps))
    bound = largest_deviation(mechanism, steps)
    assert found <= bound * (1 + 1e-6)
    assert bound <= 2.5 * found


def test_largest_deviation_of_blt_is_exact():
    toeplitz = Toeplitz((0.9, 0.5), (-0.1, -0.2))
    inverse = [1.0] + [-0.1 * 0.9**j - 0.2 * 0.5**j for j in range(9)]
    assert largest_deviation(FixedBLT(constants=toeplitz), 10) == pytest.approx(np.linalg.norm(inverse))


def test_tail_is_exceeded_with_a_chance_of_at_most_one_in_a_billion():
    bound = tail(td.Independent(), deviation=1e6, steps=1000, dimension=10**6, helpers=4)
    beyond = 2 * scipy.stats.norm.sf((bound - 8) / (1e6 * 2)) * 1000 * 10**6
    assert beyond == pytest.approx(1e-9, rel=0.01)
