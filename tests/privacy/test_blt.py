"""BLT noise: the matrix, and the table of its constants."""

import math

import numpy as np
import pytest

from tardigrad.errors import ConfigError
from tardigrad.privacy.blt import BLT, constants, most_steps
from tardigrad.privacy.tree import Tree


def test_blt_is_the_published_matrix():
    blt = BLT().toeplitz(2048, 1, 2048)
    assert blt.sensitivity(2048, 1, 1) == pytest.approx(1.864702, abs=1e-4)
    assert blt.loss(2048, 1, 1) == pytest.approx(3.503422, abs=1e-6)
    decay = [0.9994301928390279, 0.9861913147789118, 0.7890162272135033]
    scale = [0.033605100332528226, 0.10490397921006192, 0.3248833082629709]
    expected = [1.0, *(np.array(scale) @ np.power.outer(decay, np.arange(2047)))]
    np.testing.assert_allclose(blt.coefficients(2048), expected, atol=1e-4)


def test_blt_constants_are_valid_and_have_the_stated_loss():
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
def test_blt_limits_between_the_rows_of_the_table(limits):
    # Limits that no row was made for: not worse than a run twice as long, nor than the tree.
    steps, participations, separation = limits
    blt, longer = BLT().toeplitz(*limits), (2 * steps, participations, separation)
    assert blt.sensitivity(*limits) == BLT().sensitivity(*limits)
    assert blt.loss(*limits) <= BLT().toeplitz(*longer).loss(*longer)
    worst = max(Tree().prefix_variance(t, *limits) for t in range(1, steps + 1))
    assert blt.loss(*limits) <= Tree().sensitivity(*limits) * math.sqrt(worst)


def test_blt_refuses_more_steps_than_the_table_has():
    with pytest.raises(ConfigError, match="at most 16384 steps"):
        BLT().sensitivity(most_steps() + 1, 1, 1)
