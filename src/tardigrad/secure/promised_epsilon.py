"""The epsilon of a policy, worked out from its noise, so that nobody must believe the number in it."""

from __future__ import annotations

import math

from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import MOST_STEPS, ByParticipation
from tardigrad.privacy.grid import cost
from tardigrad.secure.integer_noise import COARSER, cell_of
from tardigrad.secure.policy import Policy

TOLERANCE = 1e-6
"""The relative difference of two computations of one epsilon."""


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
    if found > noise.epsilon * (1 + TOLERANCE):
        raise ConfigError(
            f"the policy promises an epsilon of {noise.epsilon:g}, but its noise gives {found:.4g}: the "
            "server has worked it out wrongly, or lies"
        )
