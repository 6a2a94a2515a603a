"""The formulas of private versions for momentum approximation: Eqs. 16 to 19 and what follows from them."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.privacy.momentum_payload import (
    gamma_from_overhead,
    gamma_from_xi,
    nearest_row,
    noisy_row,
    xi_from_gamma,
)
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.poisson import poisson_sigma


def test_calibration_has_the_published_values():
    gamma = gamma_from_overhead(1.0, 1.1)
    assert gamma == pytest.approx(0.4582576, abs=1e-7)
    assert math.hypot(1.0, gamma) == pytest.approx(1.1)
    sigma = poisson_sigma(2.0, 5e-4, 2000, 1e-7)
    assert xi_from_gamma(1.0, sigma, gamma) == pytest.approx(1.736059, abs=1e-4)


@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_gamma_of_equation_17_gives_its_xi(clip):
    sigma, xi = 0.7, 2.0
    gamma = sigma / math.sqrt(xi**2 - sigma**2) * clip
    assert xi_from_gamma(clip, sigma, gamma) == pytest.approx(xi)
    assert gamma_from_overhead(clip, math.hypot(clip, gamma) / clip) == pytest.approx(gamma)


def test_overhead_that_adds_no_noise_is_refused():
    with pytest.raises(ConfigError, match="above 1"):
        gamma_from_overhead(1.0, 1.0)


def test_row_without_noise_is_the_exact_one():
    window, gamma, divisor, stalenesses = 4, 0.3, 3.0, [0, 2, 2]
    weights = [1.0, 0.5, 0.5]
    versions, expected = torch.zeros(window + 1), np.zeros(window + 1)
    for weight, staleness in zip(weights, stalenesses, strict=True):
        versions[staleness] += gamma * weight
        expected[-1 - staleness] += weight / divisor  # as momentum approximation counts
    row = noisy_row(versions, gamma, divisor, step=10)
    np.testing.assert_allclose(row.numpy(), expected, atol=1e-6)
    law = torch.tensor([0.3, 0.4, 0.5, 0.8, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(nearest_row(row, law, total=1.0).numpy(), expected, atol=1e-6)
    assert nearest_row(row, law, total=None).tolist() == row.tolist()


def test_noise_of_a_count_is_xi():
    window, clip, sigma = 20_000, 0.2, 0.7
    gamma = gamma_from_overhead(clip, 1.1)
    noise = sigma * math.hypot(clip, gamma) * Seeded(1)(window + 1)
    counts = noisy_row(noise, gamma, divisor=1.0, step=window)
    assert float(counts.std()) == pytest.approx(xi_from_gamma(clip, sigma, gamma), rel=0.03)


def test_versions_before_zero_have_no_weight():
    for step, zeros in [(0, 4), (1, 3), (3, 1), (4, 0), (9, 0)]:
        row = noisy_row(torch.ones(5), 1.0, 1.0, step)
        assert int((row == 0).sum()) == zeros
        assert (row[:zeros] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_nearest_row_is_optimal_and_closer_to_the_truth(seed):
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


def test_xi_as_a_setting_gives_the_gamma_of_equation_17():
    settings = {"versions": "private", "noise_multiplier": 0.7, "clip": 0.2, "noise_from": "seed"}
    pace, buffer = td.Asynchronous(concurrency=10), td.Buffer(size=5, staleness_bound=4)
    given = td.Participation(**settings, version_noise=1.5, participations=3, separation=1)
    guarantee = given.guarantee(12, 50, pace, buffer)
    assert xi_from_gamma(1.0, 0.7, guarantee.version_gamma) == pytest.approx(1.5)
    assert guarantee.overhead == pytest.approx(math.hypot(1.0, guarantee.version_gamma))
    with pytest.raises(td.ConfigError, match=r"privacy\.version_noise: .* must be above that"):
        given.model_copy(update={"version_noise": 0.7}).guarantee(12, 50, pace, buffer)


def test_xi_without_noise_is_refused():
    with pytest.raises(td.ConfigError, match="above 0"):
        gamma_from_xi(1.0, 0.0, 1.0)


def test_xi_just_above_the_noise_multiplier_has_a_gamma():
    for sigma in (0.7, 1e-6):
        gamma = gamma_from_xi(1.0, sigma, math.nextafter(sigma, 1.0))  # their squares may be equal
        assert math.isfinite(gamma)
        assert gamma > 1e7


def test_private_versions_need_a_law_without_zeros():
    law = td.CosineGate(cutoff=5)
    momentum = td.Approximation()
    private = td.Participation(versions="private", noise_multiplier=1.0, participations=3, noise_from="seed")
    settings = {"algorithm": td.FedBuff(staleness=law, momentum=momentum), "privacy": private}
    settings |= {"stop": td.Stop(steps=5)}
    td.Config(**settings, buffer=td.Buffer(staleness_bound=4)).resolved(50)
    with pytest.raises(
        td.ConfigError, match=r"buffer\.staleness_bound: .*cosine_gate gives one of staleness 5"
    ):
        td.Config(**settings, buffer=td.Buffer(staleness_bound=5)).resolved(50)
