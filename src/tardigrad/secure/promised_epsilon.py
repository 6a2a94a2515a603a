"""The epsilon of a policy, worked out from its noise, so that nobody must believe the number in it."""

from __future__ import annotations

import math

import numpy as np

from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import MOST_STEPS, ByParticipation
from tardigrad.privacy.blt import Toeplitz
from tardigrad.privacy.grid import cost
from tardigrad.secure.integer_noise import COARSER, cell_of
from tardigrad.secure.policy import Policy

TOLERANCE = 1e-6
"""The relative difference of two computations of one epsilon."""
MOST_DELTA = 1e-3
"""The greatest delta at which an epsilon is a promise to somebody who demands one. With a large delta, every
mechanism has a small epsilon."""


def epsilon_of(policy: Policy) -> float:
    """Return the epsilon that the noise of one helper gives, and infinity if it promises nothing.

    A client changes a weighted sum of codes by at most the largest norm times the largest weight. Where noise
    comes in cells of more than one integer, that costs what the accounting counts as rounding.
    """
    noise = policy.noise
    if noise is None or policy.limits is None or policy.norm is None or noise.seed is not None:
        return math.inf
    if max(noise.steps, noise.allowed) > MOST_STEPS:
        raise ConfigError(f"the noise is planned for {noise.steps} steps; at most {MOST_STEPS} are possible")
    if noise.toeplitz is not None:
        _check_constants(noise.toeplitz, noise.steps)
    multiplier = noise.deviation / (policy.norm * policy.denominator)
    rounding = cost(COARSER * sum(policy.lengths)) if cell_of(noise.deviation) > 1 else 0.0
    mode = ByParticipation(noise.noise(), *policy.limits, rounding)
    return mode.epsilon(multiplier, noise.steps, noise.delta, min(noise.allowed, noise.steps))


def check_epsilon(policy: Policy) -> None:
    """Raise a ConfigError if a policy promises a smaller epsilon than its noise gives."""
    noise = policy.noise
    if noise is None or noise.seed is not None:
        return
    found = epsilon_of(policy)
    if not found <= noise.epsilon * (1 + TOLERANCE):  # also if it is not a number
        raise ConfigError(
            f"the policy promises an epsilon of {noise.epsilon:g}, but its noise gives {found:.4g}: the "
            "server has worked it out wrongly, or lies"
        )


def check_delta(policy: Policy) -> None:
    """Raise a ConfigError if the delta of a policy is so large that its epsilon says nothing."""
    if policy.noise is not None and policy.noise.delta > MOST_DELTA:
        raise ConfigError(
            f"the policy promises its epsilon at a delta of {policy.noise.delta:g}; with a delta above "
            f"{MOST_DELTA:g} a small epsilon protects nobody"
        )


def _check_constants(toeplitz: Toeplitz, steps: int) -> None:
    """Raise a ConfigError unless the constants of BLT noise are as the computation of its sensitivity takes
    for granted: the coefficients of C are positive and do not increase, so that the worst client takes part
    as often and as early as it can, always with the same contribution."""
    decay, scale = np.array(toeplitz.inverse_decay), np.array(toeplitz.inverse_scale)
    plain = decay.shape == scale.shape and bool(np.all((decay > 0) & (decay < 1) & (scale < 0)))
    exact = all(np.array_equal(one, one.astype(np.float32)) for one in (decay, scale))
    column = toeplitz.coefficients(steps) if plain and exact else np.zeros(1)
    if not (np.all(np.isfinite(column)) and np.all(column > 0) and np.all(np.diff(column) <= 0)):
        raise ConfigError(
            "the constants of the policy's BLT noise are not those of such noise, so that nobody can say "
            "what its epsilon is; is the server of another version, or does it lie?"
        )
