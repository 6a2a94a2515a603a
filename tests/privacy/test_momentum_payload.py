"""Private versions for momentum approximation: Eqs. 16 to 19 and what follows from them."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tardigrad.errors import ConfigError
from tardigrad.privacy.momentum_payload import (
    gamma_from_overhead,
    gamma_from_xi,
    joint_sensitivity,
    nearest_row,
    noisy_row,
    payload,
    split,
    xi_from_gamma,
)
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.poisson import poisson_sigma


def test_known_calibration():
    gamma = gamma_from_overhead(1.0, 1.1)
    assert gamma == pytest.approx(0.4582576, abs=1e-7)
    assert joint_sensitivity(1.0, gamma) == pytest.approx(1.1)
    sigma = poisson_sigma(2.0, 5e-4, 2000, 1e-7)
    assert xi_from_gamma(1.0, sigma, gamma) == pytest.approx(1.736059, abs=1e-4)


@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_gamma_and_xi_are_inverses(clip):
    gamma = gamma_from_xi(clip, sigma=0.7, xi=2.0)
    assert xi_from_gamma(clip, 0.7, gamma) == pytest.approx(2.0)
    assert gamma_from_overhead(clip, joint_sensitivity(clip, gamma) / clip) == pytest.approx(gamma)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="above sigma"):
        gamma_from_xi(1.0, sigma=2.0, xi=2.0)
    with pytest.raises(ConfigError, match="above 1"):
        gamma_from_overhead(1.0, 1.0)
    with pytest.raises(ConfigError, match="staleness 4"):
        payload(torch.ones(3), staleness=4, window=3, clip=1.0, gamma=1.0)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e4])
def test_no_payload_is_larger_than_the_joint_sensitivity(size):
    delta = size * Seeded(1)(1000)
    joint = payload(delta, staleness=2, window=5, clip=0.7, gamma=0.3)
    assert float(joint.double().norm()) <= joint_sensitivity(0.7, 0.3) * (1 + 1e-6)
    deltas, versions = split(joint, window=5)
    assert versions.tolist() == pytest.approx([0, 0, 0.3, 0, 0, 0])
    assert len(deltas) == 1000
    if size == 1e-3:
        assert torch.equal(deltas, delta)  # within the clip: untouched
    if size == 1e4:
        assert float(deltas.double().norm()) == pytest.approx(0.7, rel=1e-5)


def test_without_noise_the_row_is_the_exact_one():
    window, gamma, divisor, stalenesses = 4, 0.3, 3.0, [0, 2, 2]
    weights = [1.0, 0.5, 0.5]
    total = sum(
        weight * payload(torch.ones(2), staleness, window, 1.0, gamma)
        for weight, staleness in zip(weights, stalenesses, strict=True)
    )
    _, versions = split(total, window)
    row = noisy_row(versions, gamma, divisor, step=10)
    expected = np.zeros(window + 1)
    for weight, staleness in zip(weights, stalenesses, strict=True):  # as momentum approximation counts
        expected[-1 - staleness] += weight / divisor
    np.testing.assert_allclose(row.numpy(), expected, atol=1e-6)
    law = torch.tensor([0.3, 0.4, 0.5, 0.8, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(nearest_row(row, law, total=1.0).numpy(), expected, atol=1e-6)
    assert nearest_row(row, law, total=None).tolist() == row.tolist()


def test_the_noise_of_a_count_is_xi():
    window, clip, sigma = 20_000, 0.2, 0.7
    gamma = gamma_from_overhead(clip, 1.1)
    noise = sigma * joint_sensitivity(clip, gamma) * Seeded(1)(window + 1)
    counts = noisy_row(noise, gamma, divisor=1.0, step=window)
    assert float(counts.std()) == pytest.approx(xi_from_gamma(clip, sigma, gamma), rel=0.03)


def test_versions_that_do_not_exist_have_no_weight():
    for step, zeros in [(0, 4), (1, 3), (3, 1), (4, 0), (9, 0)]:
        row = noisy_row(torch.ones(5), 1.0, 1.0, step)
        assert int((row == 0).sum()) == zeros
        assert (row[:zeros] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_row_is_nearest_and_nearer_to_the_truth(seed):
    generator = np.random.default_rng(seed)
    weights = np.sort(generator.uniform(0.2, 1.0, 6))
    counts = generator.multinomial(10, np.ones(6) / 6)
    truth = counts / 10 * weights
    noisy = truth + 0.2 * generator.normal(size=6)
    found = nearest_row(torch.from_numpy(noisy), torch.from_numpy(weights), total=1.0).numpy()
    assert found.min() >= 0
    assert (found / weights).sum() == pytest.approx(1)
    best = minimize(
        lambda w: ((w - noisy) ** 2).sum(),
        truth,
        bounds=[(0, None)] * 6,
        constraints={"type": "eq", "fun": lambda w: (w / weights).sum() - 1},
        options={"ftol": 1e-14},
    ).x
    np.testing.assert_allclose(found, best, atol=1e-5)
    assert np.linalg.norm(found - truth) < np.linalg.norm(noisy - truth)
    assert math.isfinite(found.sum())
