"""Statistical tests of an audit: whether noise and clip are those that the accounting assumes.

These tests know the canaries' coins, so only noise should remain of what was released. They find defects with
any number of canaries, whereas guesses can show an epsilon of at most the logarithm of that number. They show
that the mechanism is not the promised one, but not what its epsilon is.
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
    """Return a description of each defect of the noise, with an error probability of at most `error`.

    `released` has, by name, matrices of steps x coordinates of noise. Their columns should be independent and
    normal with covariance scale^2 `covariance`. After multiplication by the inverse of the Cholesky factor of
    the covariance, all numbers are independent standard normals if the noise is right. Their sum of squares
    (chi-squared) shows whether there is too little noise. The correlation of two rows shows whether a vector
    of noise was used twice.
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
    """Return the two most correlated rows, or None if independent rows could be correlated as much.

    `error` is the probability that independent rows are reported.

    The correlation r of independent normal vectors of length n is distributed so that (1 + r) / 2 is
    Beta((n - 1) / 2, (n - 1) / 2).
    """
    steps, length = normals.shape
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    if length < 2 or steps < 2 or not lengths.all():  # there is nothing to compare
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
    """Return a description of the defect if included canaries count for more than the clip, or None.

    The matrices are canaries x steps, for the included canaries. `weights` are their weights. `of_included`
    is what all of them sent, along their directions, and `excess` is what was released less that: only noise,
    if the clip holds. The sum of weights' covariance^-1 excess is then normal around 0, and its variance is
    scale^2 times the same sum with `of_included`. `error` is the probability of a false report.
    """
    whitened = np.linalg.solve(covariance, weights.T).T
    found, energy = float((whitened * excess).sum()), float((whitened * of_included).sum())
    if energy <= 0 or scipy.stats.norm.sf(found / (scale * math.sqrt(energy))) >= error:
        return None
    return f"contributions are {1 + found / energy:.2g} times as long as the clip"
