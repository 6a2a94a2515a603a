"""The scores of canaries: the covariance of the noise, and log-likelihoods."""

import numpy as np
import pytest
from scipy.stats import norm

from tardigrad.privacy.blt import BLT
from tardigrad.privacy.canary_scores import log_likelihoods, mixing_matrix
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.tree import Tree

NOISES = {"blt": BLT(), "tree": Tree(), "plain tree": Tree(honaker=False), "independent": Independent()}


def test_the_score_of_a_sampled_canary_is_its_log_likelihood():
    along, rate, sigma = np.array([[0.3, -0.2, 1.4], [0.0, 0.1, 0.2]]), 0.1, 0.6
    inside = (1 - rate) * norm.pdf(along, 0, sigma) + rate * norm.pdf(along, 1, sigma)
    expected = np.log(inside / norm.pdf(along, 0, sigma)).sum(axis=1)
    np.testing.assert_allclose(log_likelihoods(along, rate, sigma), expected)
    everybody = ((along - 0.5) / sigma**2).sum(axis=1)
    np.testing.assert_allclose(log_likelihoods(along, 1.0, sigma), everybody)


@pytest.mark.parametrize("name", NOISES)
def test_the_mixing_matrix_is_that_of_the_noise(name):
    noise, steps = NOISES[name], 13
    mixing = mixing_matrix(noise, steps, planned=16, k=1, b=16)
    prefixes = np.cumsum(mixing, axis=0)
    expected = [noise.prefix_variance(t, 16, 1, 16) for t in range(1, steps + 1)]
    np.testing.assert_allclose((prefixes**2).sum(axis=1), expected, rtol=1e-5)
