"""What an audit checks besides its guesses: whether noise and clip are those that the accounting assumes.

These tests know the canaries' coins, so nothing but noise should be left of what was released. They find a
defect in any run, however few the canaries, where guesses can show an epsilon up to the logarithm of their
number at most. They say that the mechanism is not the promised one, not what epsilon it has instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def noise_defects(
    released: Mapping[str, Matrix], covariance: Matrix, scale: float, error: float
) -> list[str]:
    """What is wrong with the noise, at an error probability of at most `error`.

    `released`: by name, steps x coordinates of noise, whose columns should be independent and normal with
    covariance scale^2 `covariance`. Multiplied with the inverse of its Cholesky factor all its numbers are
    independent standard normals if the noise is right. Their sum of squares (chi-squared) shows whether there
    is too little of it; the correlation of any two rows, whether a vector of noise was used twice.
    """
    factor = np.linalg.cholesky(covariance)
    each = error / (2 * len(released))
    defects = []
    for name, rows in released.items():
        normals = scipy.linalg.solve_triangular(factor, rows, lower=True) / scale
        if scipy.stats.chi2.cdf((normals**2).sum(), normals.size) < each:
            size = math.sqrt((normals**2).mean())
            defects.append(f"the noise in {name} is {size:.2g} times what is promised")
        if (pair := _repeated(normals, each)) is not None:
            steps = f"{pair[0] + 1} and {pair[1] + 1}"
            defects.append(f"the noise in {name} is not fresh: that of steps {steps} is correlated")
    return defects


def _repeated(normals: Matrix, error: float) -> tuple[int, int] | None:
    """The two rows that are correlated most, if independent ones would not be with probability 1 - error.

    The correlation r of independent normal vectors of length n is distributed so that (1 + r) / 2 is
    Beta((n - 1) / 2, (n - 1) / 2).
    """
    steps, length = normals.shape
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    if length < 2 or steps < 2 or not lengths.all():  # nothing to compare
        return None
    units = normals / lengths
    correlations = np.triu(np.abs(units @ units.T), 1)
    first, second = divmod(int(correlations.argmax()), steps)
    half = (length - 1) / 2
    tail = 2 * scipy.stats.beta.cdf((1 - correlations.max()) / 2, half, half)
    return (first, second) if tail * math.comb(steps, 2) < error else None


def length_defect(
    weights: Matrix, excess: Matrix, of_included: Matrix, covariance: Matrix, scale: float, error: float
) -> str | None:
    """Whether the canaries that are in count for more than the clip, at this error probability.

    All arguments are canaries x steps, of those that are in: their weights, and along their directions what
    was released less what all of them sent (noise, if the clip holds), and what all of them sent. The sum of
    weights' covariance^-1 excess is normal around 0, with the variance scale^2 times the same sum for
    what they sent.
    """
    whitened = np.linalg.solve(covariance, weights.T).T
    found, energy = float((whitened * excess).sum()), float((whitened * of_included).sum())
    if energy <= 0 or scipy.stats.norm.sf(found / (scale * math.sqrt(energy))) >= error:
        return None
    return f"contributions are {1 + found / energy:.2g} times as long as the clip"
