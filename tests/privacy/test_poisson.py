"""Accounting for Poisson sampling: known values, calibration, and its limits."""

import subprocess
import sys

import pytest

from tardigrad.privacy.poisson import poisson_epsilon, poisson_sigma

DELTA = 1e-7


RATE, STEPS = 5e-4, 2000


@pytest.mark.parametrize(
    ("sigma", "by", "epsilon"),
    [(0.7, "rdp", 2.172271), (1.0, "rdp", 0.913268), (0.7, "pld", 0.942671), (1.0, "pld", 0.142719)],
)
def test_poisson_epsilon_has_the_known_values(sigma, by, epsilon):
    assert poisson_epsilon(sigma, RATE, STEPS, DELTA, by) == pytest.approx(
        epsilon, abs=1e-4 if by == "rdp" else 1e-3
    )


@pytest.mark.parametrize(("by", "sigma"), [("rdp", 0.723238), ("pld", 0.609130)])
def test_poisson_sigma_has_the_known_values(by, sigma):
    found = poisson_sigma(2.0, RATE, STEPS, DELTA, by)
    assert found == pytest.approx(sigma, abs=1e-4 if by == "rdp" else 1e-3)
    assert 2 - 1e-4 < poisson_epsilon(found, RATE, STEPS, DELTA, by) <= 2


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.5, 1.0, 1.7, 3.0, 8.0])
def test_calibrated_noise_is_never_too_small(epsilon):
    sigma = poisson_sigma(epsilon, 0.01, 100, 1e-6)
    assert poisson_epsilon(sigma, 0.01, 100, 1e-6) <= epsilon
    assert poisson_epsilon(sigma * (1 - 1e-5), 0.01, 100, 1e-6) > epsilon


def test_excluded_renyi_orders_are_not_logged():
    code = "from tardigrad.privacy.poisson import _rdp_epsilon as e; e(0.6254, 0.1, 10, 1e-7)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr == ""
