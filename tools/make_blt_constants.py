"""Makes src/tardigrad/privacy/blt_constants.json: the BLT matrix with the least noise for many limits.

python tools/make_blt_constants.py

For each (steps n, participations k, separation b) it minimises sensitivity times the standard deviation of
the last prefix's noise over C = prod (1 - mu_i x) / prod (1 - lambda_i x), with the poles and zeros in the
order 1 > lambda_1 > mu_1 > lambda_2 > ... > 0 that makes the coefficients positive and falling. They are
written x = 1 - exp(-y), where the y are sums of exponentials of free numbers. What is found is rounded to
float32 and checked. jax-privacy 2.0.0, which differentiates the same loss, finds losses within 0.4 % of these
(on nine rows; equal to six digits where a client takes part once).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tardigrad.privacy.blt import Toeplitz

ABOUT = (
    "Buffered linear Toeplitz matrices with three buffers, made by tools/make_blt_constants.py: C^-1 is 1 on "
    "the diagonal and the sum of inverse_scale * inverse_decay^(j - 1) on the j-th below; all numbers are "
    "float32. For clients that take part at most `participations` times, at least `separation` steps apart, "
    "it has the least `loss`: sensitivity of C times the standard deviation of the last prefix's noise."
)
TABLE = Path(__file__).parents[1] / "src/tardigrad/privacy/blt_constants.json"
STEPS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
PARTICIPATIONS = [1, 2, 4, 8, 16, 32]
BUFFERS = 3
FARTHEST = 14.0
"""The largest y: a pole of 1 - 8e-7. Nearer to 1, rounding could make C's coefficients grow."""
NEAREST = 0.05
"""Poles and zeros are at least so far apart in y: where they meet, a buffer does nothing."""
START = np.log([3.5, 2.0, 1.5, 1.5, 1.0, 0.4])


def toeplitz(free: NDArray[np.float64]) -> Toeplitz:
    """From free numbers: the largest pole first, then the largest zero, the next pole, ..."""
    gaps = np.clip(np.exp(np.minimum(free, 5.0)), NEAREST, None)
    y = np.minimum(np.cumsum(gaps[::-1])[::-1], FARTHEST - NEAREST * np.arange(len(free)))
    x = -np.expm1(-y)
    poles, zeros = x[0::2], x[1::2]
    scale = []  # C^-1 = prod (1 - pole x) / prod (1 - zero x) = 1 + sum of scale_i x / (1 - zero_i x)
    for i, zero in enumerate(zeros):
        others = [(zero - poles[j]) / (zero - zeros[j]) for j in range(BUFFERS) if j != i]
        scale.append((zero - poles[i]) * np.prod(others))
    return Toeplitz(tuple(zeros.tolist()), tuple(np.array(scale).tolist()))


def rounded(exact: Toeplitz) -> Toeplitz:
    """To the float32 numbers that the noise is made with."""
    return Toeplitz(*(tuple(np.array(part, dtype=np.float32).tolist()) for part in exact))


def loss(free: NDArray[np.float64], n: int, k: int, b: int) -> float:
    value = np.log(toeplitz(free).loss(n, k, b))
    return float(value) if np.isfinite(value) else 1e3


def best(n: int, k: int, b: int, starts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Gradient steps and a simplex in turn, from several starts, until neither finds better."""
    found, least = starts[0], np.inf
    for start in starts:
        free, value = start, np.inf
        for _ in range(10):
            before = value
            free = minimize(loss, free, (n, k, b), "BFGS", options={"gtol": 1e-9}).x
            options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 600, "adaptive": True}
            result = minimize(loss, free, (n, k, b), "Nelder-Mead", options=options)
            free, value = result.x, float(result.fun)
            if before - value < 1e-8:
                break
        if value < least:
            found, least = free, value
    return found


def limits() -> list[tuple[int, int, int]]:
    """(n, k, b) with b = n / k, the largest at which k can be reached, and half of that."""
    chosen = []
    for n in STEPS:
        for k in PARTICIPATIONS:
            chosen.append((n, k, n // k))
            if k > 1:
                chosen.append((n, k, n // (2 * k)))
    return chosen


def make() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    found: dict[tuple[int, int], NDArray[np.float64]] = {}
    for n, k, b in limits():
        near = [free for (m, j), free in found.items() if (m, j) in [(n // 2, k), (n, k), (n, k // 2)]]
        free = best(n, k, b, [START, *near])
        found[n, k] = free
        made = rounded(toeplitz(free))
        column = made.coefficients(n)
        assert (column > 0).all(), (n, k, b)
        assert (np.diff(column) < 0).all(), (n, k, b)
        value = made.loss(n, k, b)
        print(f"n {n} k {k} b {b}: {value:.6f}, unrounded {np.exp(loss(free, n, k, b)):.6f}", flush=True)
        rows.append(
            {
                "steps": n,
                "participations": k,
                "separation": b,
                "inverse_decay": made.inverse_decay,
                "inverse_scale": made.inverse_scale,
                "loss": round(value, 6),
            }
        )
    return {"about": ABOUT, "rows": rows}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    table = make()
    rows = ",\n".join("    " + json.dumps(row) for row in table["rows"])
    TABLE.write_text(f'{{\n  "about": {json.dumps(table["about"])},\n  "rows": [\n{rows}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
