"""BLT noise: "Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy" (Dvijotham et
al.) and "A Hassle-free Algorithm for Strong Differential Privacy in Federated Learning Systems" (McMahan et
al.).

C is a lower triangular Toeplitz matrix with 1 on the diagonal and c_j = sum of omega_i lambda_i^(j - 1) on
the j-th diagonal below. Its inverse has the same form, so the noise of a step needs three vectors of memory
instead of all earlier noise.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib import resources
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import scipy  # loads its sub-packages on first use; importing some of them takes a second
import torch
from numpy.typing import NDArray
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.privacy.noise import NoiseState, Normal, count_step, most_participations

Vector = NDArray[np.float64]


class BLTConstants(TypedDict):
    """One row of the table of constants."""

    steps: int
    participations: int
    separation: int
    inverse_decay: list[float]
    inverse_scale: list[float]
    loss: float


class Toeplitz(NamedTuple):
    """The matrix C, given by the constants of its inverse: the recursion that makes the noise."""

    inverse_decay: tuple[float, ...]
    """lambda hat."""
    inverse_scale: tuple[float, ...]
    """omega hat; negative."""

    def inverse_coefficients(self, n: int) -> Vector:
        """Return the first column of C^-1: 1, then the sum of omega hat_i lambda hat_i^(j - 1)."""
        column = np.ones(n)
        powers = np.exp(np.outer(np.arange(n - 1), np.log(self.inverse_decay)))
        column[1:] = powers @ np.array(self.inverse_scale)
        return column

    def coefficients(self, n: int) -> Vector:
        """Return the first column of C.

        The generating function of C^-1, 1 + sum of omega hat_i x / (1 - lambda hat_i x), is a ratio P / Q of
        polynomials. That of C is Q / P, a recursion of three terms.
        """
        Q = np.ones(1)
        for decay in self.inverse_decay:
            Q = np.convolve(Q, [1, -decay])
        P = Q.copy()
        for i, scale in enumerate(self.inverse_scale):
            others = np.ones(1)
            for decay in self.inverse_decay[:i] + self.inverse_decay[i + 1 :]:
                others = np.convolve(others, [1, -decay])
            P[1:] += scale * others
        impulse = np.zeros(n)
        impulse[0] = 1
        column: Vector = scipy.signal.lfilter(Q, P, impulse)
        return column

    def sensitivity(self, steps: int, participations: int, separation: int) -> float:
        """Return the exact sensitivity: the norm of the sum of the columns 0, b, 2b, ...

        The squared norm is the sum of u_i . u_j <C_i, C_j> over pairs of participations with contributions u.
        The coefficients of C are positive and decreasing (a test checks the table), so <C_i, C_j> is
        positive, and it grows as i and j come closer and as both move to the front. u_i . u_j is largest for
        u_i = u_j. So a client that takes part as early and as often as allowed maximises every term at once.
        """
        column = self.coefficients(steps)
        total = np.zeros(steps)
        for i in range(most_participations(steps, participations, separation)):
            start = i * separation
            total[start:] += column[: steps - start]
        return float(np.linalg.norm(total))

    def prefix_variances(self, steps: int) -> Vector:
        """Return the variances of the sums of the first 1, 2, ..., `steps` draws."""
        variances: Vector = np.cumsum(np.cumsum(self.inverse_coefficients(steps)) ** 2)
        return variances

    def loss(self, steps: int, participations: int, separation: int) -> float:
        """Return the standard deviation of the noise of the last prefix at mu = 1; the constants minimise
        it."""
        error = float(np.sqrt(self.prefix_variances(steps)[-1]))
        return error * self.sensitivity(steps, participations, separation)


class BLT(Setting):
    """Buffered linear Toeplitz noise with three buffers. Of all kinds, it has the least noise in the model.

    Its constants come from a table that is part of the package; the sensitivity is always computed for the
    run's own limits. The constants are float32 numbers, so that the noise is exactly as the accounting
    assumes.
    """

    kind: Literal["blt"] = "blt"

    def toeplitz(self, steps: int, participations: int, separation: int) -> Toeplitz:
        """Return the constants for these limits."""
        return chosen(steps, participations, separation)

    def sensitivity(
        self, steps: int, participations: int, separation: int, after: int | None = None
    ) -> float:
        done = steps if after is None else after
        if not done:
            return 0.0
        toeplitz = self.toeplitz(steps, participations, separation)
        return _sensitivity(toeplitz, done, participations, separation)

    def start(self, dimension: int, steps: int, participations: int, separation: int) -> NoiseState:
        toeplitz = self.toeplitz(steps, participations, separation)
        return {
            "buffers": torch.zeros(len(toeplitz.inverse_decay), dimension),
            "decay": list(toeplitz.inverse_decay),  # kept, so that a resumed run uses the same constants
            "scale": list(toeplitz.inverse_scale),
            "step": 0,
            "steps": steps,
        }

    def draw(self, state: NoiseState, normal: Normal) -> Tensor:
        """Return row t of C^-1 z: out = z + omega hat . S, then S = lambda hat * S + z."""
        count_step(state)
        buffers = state["buffers"]
        z = normal(buffers.shape[1])
        out: Tensor | None = None
        for buffer, decay, scale in zip(buffers, state["decay"], state["scale"], strict=True):
            out = torch.add(z, buffer, alpha=scale) if out is None else out.add_(buffer, alpha=scale)
            torch.add(z, buffer, alpha=decay, out=buffer)
        assert out is not None, "there are three buffers"
        return out

    def prefix_variance(self, t: int, steps: int, participations: int, separation: int) -> float:
        return float(self.toeplitz(steps, participations, separation).prefix_variances(t)[-1]) if t else 0.0


class FixedBLT(BLT):
    """BLT noise with given constants: those with which the run began, even if the table has changed."""

    constants: Toeplitz

    def toeplitz(self, steps: int, participations: int, separation: int) -> Toeplitz:
        return self.constants


@lru_cache(maxsize=256)
def chosen(steps: int, participations: int, separation: int) -> Toeplitz:
    """Return the constants with the least noise for these limits, of those for the next larger run length."""
    rows = constants()
    if steps > most_steps():
        raise ConfigError(
            f"privacy.noise: BLT has constants for at most {most_steps()} steps, {steps} were asked for; "
            'take fewer steps, or kind = "tree"'
        )
    enough = min(row["steps"] for row in rows if row["steps"] >= steps)
    candidates = [
        Toeplitz(tuple(row["inverse_decay"]), tuple(row["inverse_scale"]))
        for row in rows
        if row["steps"] == enough
    ]
    return min(candidates, key=lambda toeplitz: toeplitz.loss(steps, participations, separation))


def most_steps() -> int:
    """Return the largest number of steps for which there are constants."""
    return max(row["steps"] for row in constants())


@cache
def constants() -> list[BLTConstants]:
    """Return the table of constants."""
    text = resources.files("tardigrad.privacy").joinpath("blt_constants.json").read_text()
    rows: list[BLTConstants] = json.loads(text)["rows"]
    return rows


@lru_cache(maxsize=4096)
def _sensitivity(toeplitz: Toeplitz, steps: int, participations: int, separation: int) -> float:
    return toeplitz.sensitivity(steps, participations, separation)
