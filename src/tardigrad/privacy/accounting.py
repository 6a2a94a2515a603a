"""Epsilon, delta, noise and steps: each from the others, in both modes.

By participation: no sampling is trusted, a client takes part at most k times, at least b steps apart; the
whole run is one Gaussian mechanism and its accounting is exact. Adjacency: one client's contributions are
replaced by zeros. By sampling: see `poisson`.

Sums are rounded to a grid before they get their noise (see `grid`). That makes a contribution longer by
`rounding` standard deviations of the noise, so a noise multiplier z counts as 1 / (1 / z + rounding).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tardigrad.errors import ConfigError
from tardigrad.privacy.blt import BLT, most_steps
from tardigrad.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.poisson import By, poisson_delta, poisson_epsilon, poisson_sigma

MOST_STEPS = 2**22
"""Where the number of steps is asked for, no more than this is the answer."""


class ByParticipation(NamedTuple):
    """At most `participations` of one client, `separation` steps apart."""

    noise: Noise
    participations: int
    separation: int
    rounding: float = 0.0

    def mu(self, noise_multiplier: float, steps: int, after: int | None = None) -> float:
        """Of a run planned for `steps`; of its first `after` steps, where given."""
        sensitivity = self.noise.sensitivity(steps, self.participations, self.separation, after)
        if sensitivity == 0:
            return 0.0
        return sensitivity / _counted(noise_multiplier, self.rounding) if noise_multiplier > 0 else math.inf

    def epsilon(self, noise_multiplier: float, steps: int, delta: float, after: int | None = None) -> float:
        """What the run costs; what its first `after` steps have cost, where given."""
        return gaussian_epsilon(self.mu(noise_multiplier, steps, after), delta)

    def delta(self, epsilon: float, noise_multiplier: float, steps: int) -> float:
        return gaussian_delta(self.mu(noise_multiplier, steps), epsilon)

    def noise_multiplier(self, epsilon: float, steps: int, delta: float) -> float:
        sensitivity = self.noise.sensitivity(steps, self.participations, self.separation)
        return _needed(sensitivity / gaussian_mu(epsilon, delta), self.rounding)

    @property
    def most_steps(self) -> int:
        return most_steps() if isinstance(self.noise, BLT) else MOST_STEPS


class BySampling(NamedTuple):
    """Every client joins every step with probability `rate`; independent noise."""

    rate: float
    by: By = "rdp"
    rounding: float = 0.0

    def epsilon(self, noise_multiplier: float, steps: int, delta: float, after: int | None = None) -> float:
        """What the run costs; what its first `after` steps have cost, where given."""
        done = steps if after is None else after
        return poisson_epsilon(_counted(noise_multiplier, self.rounding), self.rate, done, delta, self.by)

    def delta(self, epsilon: float, noise_multiplier: float, steps: int) -> float:
        return poisson_delta(_counted(noise_multiplier, self.rounding), self.rate, steps, epsilon, self.by)

    def noise_multiplier(self, epsilon: float, steps: int, delta: float) -> float:
        return _needed(poisson_sigma(epsilon, self.rate, steps, delta, self.by), self.rounding)

    @property
    def most_steps(self) -> int:
        return MOST_STEPS


Mode = ByParticipation | BySampling


def _counted(noise_multiplier: float, rounding: float) -> float:
    """What a noise multiplier is worth where sums are rounded to the grid."""
    return noise_multiplier / (1 + noise_multiplier * rounding)


def _needed(counted: float, rounding: float) -> float:
    """The noise multiplier that is worth so much; above it by what rounding of floats may take off."""
    if rounding == 0:
        return counted
    if counted * rounding >= 1:
        raise ConfigError(
            f"privacy.epsilon: it takes a noise multiplier of {counted:.4g}, and rounding in a model of this "
            "size costs more than that; raise epsilon"
        )
    return counted / (1 - counted * rounding) * (1 + 1e-12)


class NoisePlan(NamedTuple):
    """Four numbers that belong together."""

    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int


def solve(
    mode: Mode,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
) -> NoisePlan:
    """The one of the four that was not given.

    Noise comes out as little as allowed, steps as many as allowed (MOST_STEPS where nothing limits them, or
    as many as BLT has constants for).

    >>> from tardigrad.privacy.tree import Tree
    >>> plan = solve(ByParticipation(Tree(), 4, 512), epsilon=2.0, delta=1e-7, steps=2048)
    >>> round(plan.noise_multiplier, 4)
    19.5925
    """
    given = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier, "steps": steps}
    unknown = [name for name, value in given.items() if value is None]
    if len(unknown) != 1:
        raise ConfigError(
            f"of epsilon, delta, noise_multiplier and steps, three are given and one is sought: "
            f"{', '.join(unknown) or 'none'} was left open"
        )
    if noise_multiplier is not None and not noise_multiplier >= 0:
        raise ConfigError(f"noise_multiplier = {noise_multiplier:g}: it must be at least 0")
    if steps is not None and steps < 0:
        raise ConfigError(f"steps = {steps}: it must be at least 0")
    if epsilon is None:
        assert delta is not None
        assert noise_multiplier is not None
        assert steps is not None
        epsilon = mode.epsilon(noise_multiplier, steps, delta)
    elif delta is None:
        assert noise_multiplier is not None
        assert steps is not None
        delta = mode.delta(epsilon, noise_multiplier, steps)
    elif noise_multiplier is None:
        assert steps is not None
        noise_multiplier = mode.noise_multiplier(epsilon, steps, delta)
    elif steps is None:
        steps = _steps(mode, epsilon, noise_multiplier, delta)
    return NoisePlan(epsilon, delta, noise_multiplier, steps)


def _steps(mode: Mode, epsilon: float, noise_multiplier: float, delta: float) -> int:
    """The most steps that stay within epsilon, by doubling and halving."""

    def fits(steps: int) -> bool:
        return mode.epsilon(noise_multiplier, steps, delta) <= epsilon

    if not fits(1):
        raise ConfigError(
            f"epsilon = {epsilon:g}: a noise multiplier of {noise_multiplier:g} allows not even one step; "
            f"it takes {mode.noise_multiplier(epsilon, 1, delta):.4g}"
        )
    low, most = 1, mode.most_steps
    while low < most and fits(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most)  # does not fit, or is low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
