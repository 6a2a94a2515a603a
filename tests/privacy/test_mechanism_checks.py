"""The checks of noise and clip report defects, and rarely report a right mechanism."""

import re

import numpy as np
import pytest

from tardigrad.privacy.blt import BLT
from tardigrad.privacy.canary_scores import mixing_matrix
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.mechanism_checks import length_defect, noise_defects
from tardigrad.privacy.tree import Tree

STEPS, SCALE = 20, 3.0
NOISES = [BLT(), Tree(), Independent()]


def noise(kind, seed, width=64):
    """Steps x coordinates of it, and its covariance."""
    mixing = mixing_matrix(kind, STEPS, STEPS, 1, STEPS)
    normals = np.random.default_rng(seed).normal(size=(mixing.shape[1], width))
    return SCALE * mixing @ normals, mixing @ mixing.T


@pytest.mark.parametrize("kind", NOISES, ids=lambda kind: kind.kind)
def test_right_noise_is_rarely_reported(kind):
    runs, error = 300, 0.2
    found = []
    for seed in range(runs):
        rows, covariance = noise(kind, seed, width=8)
        found.append(bool(noise_defects({"it": rows}, covariance, SCALE, error)))
    assert 0 < np.mean(found) <= error + 3 * np.sqrt(error * (1 - error) / runs)


@pytest.mark.parametrize("kind", NOISES, ids=lambda kind: kind.kind)
def test_wrong_noise_is_reported(kind):
    rows, covariance = noise(kind, 1)

    def said(rows):
        return noise_defects({"this": rows, "that": noise(kind, 2)[0]}, covariance, SCALE, 1e-6)

    assert said(rows) == said(1.5 * rows) == [], "more noise does no harm"
    (little,) = said(0.7 * rows)
    assert re.fullmatch(r"the noise in this is 0\.7\d? times what is promised", little)
    assert said(0 * rows) == ["the noise in this is 0 times what is promised"]
    factor = np.linalg.cholesky(covariance)
    normals = np.linalg.solve(factor, rows)
    normals[17] = normals[4]
    assert said(factor @ normals) == ["the noise in this is not fresh: that of steps 5 and 18 is correlated"]


def test_a_single_number_a_step_has_no_correlation():
    rows, covariance = noise(BLT(), 1, width=1)
    assert noise_defects({"it": rows}, covariance, SCALE, 1e-3) == []


def contributions(seed, canaries=100, size=400):
    """Weights of included canaries, what they send along each one's direction, and noise along it."""
    generator = np.random.default_rng(seed)
    directions = generator.choice([-1.0, 1.0], size=(canaries, size)) / np.sqrt(size)
    weights = np.zeros((canaries, STEPS))
    weights[np.arange(canaries), generator.integers(0, STEPS, canaries)] = 0.8
    rows, covariance = noise(BLT(), seed, size)
    return weights, directions @ (directions.T @ weights), directions @ rows.T, covariance


def test_right_contributions_are_rarely_reported():
    runs, error = 300, 0.2
    found = []
    for seed in range(runs):
        weights, sent, left, covariance = contributions(seed)
        found.append(length_defect(weights, left, sent, covariance, SCALE, error) is not None)
    assert np.mean(found) == pytest.approx(error, abs=3 * np.sqrt(error * (1 - error) / runs))


def test_contributions_that_are_too_long_are_reported():
    weights, sent, left, covariance = contributions(3)
    assert length_defect(weights, left, sent, covariance, SCALE, 1e-4) is None
    assert length_defect(weights, left + 9 * sent, sent, covariance, SCALE, 1e-4) == (
        "contributions are 10 times as long as the clip"
    )
    nobody = np.zeros_like(weights)
    assert length_defect(nobody, left, nobody, covariance, SCALE, 1e-4) is None
