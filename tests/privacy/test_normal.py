"""Normal numbers have the right distribution, and no two vectors are equal."""

import pytest
import torch
from scipy.stats import kstest, kurtosis

from tardigrad.privacy.normal import CHUNK, Cryptographic, Seeded

N = 2_000_000
"""So many that noise half a percent too small is found out."""


def check(sample, p):
    values = sample.double().numpy()
    assert abs(values.mean()) < 5 / N**0.5
    assert values.std() == pytest.approx(1, abs=5 / (2 * N) ** 0.5)
    assert kurtosis(values) == pytest.approx(0, abs=5 * (24 / N) ** 0.5)
    assert kstest(values, "norm").pvalue > p
    assert 4 < abs(values).max() < 8.6
    half = N // 2  # cos and sin parts, and neighbours, are independent
    for lag in (1, half, CHUNK):
        assert abs((values[:-lag] * values[lag:]).mean()) < 5 / (N - lag) ** 0.5


def test_seeded_normals():
    check(Seeded(5)(N), p=0.01)


def test_cryptographic_normals():
    check(Cryptographic()(N), p=1e-6)  # fails once in a million runs


@pytest.mark.parametrize("dimension", [0, 1, 2, 3, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_normals_have_any_dimension(dimension):
    vector = Cryptographic()(dimension)
    assert vector.shape == (dimension,)
    assert vector.dtype == torch.float32
    assert torch.isfinite(vector).all()
    assert (vector != 0).all()
    assert len(vector.unique()) >= 0.99 * dimension
    assert Seeded(1)(dimension).shape == (dimension,)


def test_no_two_vectors_are_the_same():
    source = Cryptographic()
    assert not torch.equal(source(10), source(10))
    assert not torch.equal(Cryptographic()(10), Cryptographic()(10))
    seeded = Seeded(3)
    assert not torch.equal(seeded(10), seeded(10))
    assert not torch.equal(Seeded(3)(10), Seeded(4)(10))


def test_a_seed_can_be_repeated_and_global_state_is_left_alone():
    before = torch.get_rng_state()
    first, second = Seeded(3), Seeded(3)
    for _ in range(3):
        assert torch.equal(first(10), second(10))
    assert torch.equal(before, torch.get_rng_state())
