"""The exact accounting of the Gaussian mechanism: known values, and another implementation."""

import dp_accounting
import pytest

from tardigrad.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

DELTA = 1e-7


def test_gaussian_mechanism_has_the_known_noise():
    assert 1 / gaussian_mu(2.0, DELTA) == pytest.approx(2.4490607, abs=1e-6)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 20.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12])
def test_gaussian_mechanism_agrees_with_dp_accounting(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-9)
    if epsilon > 0:
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-8)
        assert 1 / gaussian_mu(epsilon, delta) == pytest.approx(
            dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-6
        )
