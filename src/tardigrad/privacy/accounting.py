"""Privacy accounting: epsilon, delta, noise and steps, each computed from the other three, in two modes.

By participation: no sampling is trusted. A client takes part at most k times, in steps at least b apart. The
whole run is one Gaussian mechanism, so its accounting is exact. Two runs are adjacent if one client's
contributions are replaced by zeros. By sampling: see `poisson`.

Sums are rounded to a grid before noise is added (see `grid`). Rounding can make a contribution longer by
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
"""The largest number of steps that `solve` returns."""


class ByParticipation(NamedTuple):
    """Accounting for at most `participations` contributions of one client, `separation` steps apart."""

    noise: Noise
    participations: int
    separation: int
    rounding: float = 0.0

    def mu(self, noise_multiplier: float, steps: int, after: int | None = None) -> float:
        """Return mu of a run planned for `steps`, or of its first `after` steps."""
        sensitivity = self.noise.sensitivity(steps, self.participations, self.separation, after)
        if sensitivity == 0:
            return 0.0
        return sensitivity / _counted(noise_multiplier, self.rounding) if noise_multiplier > 0 else math.inf

    def epsilon(self, noise_multiplier: float, steps: int, delta: float, after: int | None = None) -> float:
        """Return the epsilon of a run planned for `steps`, or of its first `after` steps."""
        return gaussian_epsilon(self.mu(noise_multiplier, steps, after), delta)

    def delta(self, epsilon: float, noise_multiplier: float, steps: int) -> float:
        """Return the smallest delta at this epsilon."""
        return gaussian_delta(self.mu(noise_multiplier, steps), epsilon)

    def noise_multiplier(self, epsilon: float, steps: int, delta: float) -> float:
        """Return the smallest noise multiplier for this budget."""
        sensitivity = self.noise.sensitivity(steps, self.participations, self.separation)
        return _needed(sensitivity / gaussian_mu(epsilon, delta), self.rounding)

    @property
    def most_steps(self) -> int:
        """The largest number of steps that can be planned for."""
        return most_steps() if isinstance(self.noise, BLT) else MOST_STEPS


class BySampling(NamedTuple):
    """Accounting where every client joins every step with probability `rate`; the noise is independent."""

    rate: float
    by: By = "rdp"
    rounding: float = 0.0

    def epsilon(self, noise_multiplier: float, steps: int, delta: float, after: int | None = None) -> float:
        """Return the epsilon of a run planned for `steps`, or of its first `after` steps."""
        done = steps if after is None else after
        return poisson_epsilon(_counted(noise_multiplier, self.rounding), self.rate, done, delta, self.by)

    def delta(self, epsilon: float, noise_multiplier: float, steps: int) -> float:
        """Return the smallest delta at this epsilon."""
        return poisson_delta(_counted(noise_multiplier, self.rounding), self.rate, steps, epsilon, self.by)

    def noise_multiplier(self, epsilon: float, steps: int, delta: float) -> float:
        """Return the smallest noise multiplier for this budget."""
        return _needed(poisson_sigma(epsilon, self.rate, steps, delta, self.by), self.rounding)

    @property
    def most_steps(self) -> int:
        """The largest number of steps that can be planned for."""
        return MOST_STEPS


Mode = ByParticipation | BySampling


def _counted(noise_multiplier: float, rounding: float) -> float:
    """Return the noise multiplier that the accounting may count where sums are rounded to the grid."""
    return noise_multiplier / (1 + noise_multiplier * rounding)


def _needed(counted: float, rounding: float) -> float:
    """Return the noise multiplier that counts as `counted` where sums are rounded to the grid.

    The result is slightly larger, so that floating-point rounding does not make it count less.
    """
    if rounding == 0:
        return counted
    if counted * rounding >= 1:
        raise ConfigError(
            f"privacy.epsilon: it takes a noise multiplier of {counted:.4g}, and rounding in a model of this "
            "size costs more than that; raise epsilon"
        )
    return counted / (1 - counted * rounding) * (1 + 1e-12)


class NoisePlan(NamedTuple):
    """Epsilon, delta, noise multiplier and steps of one plan."""

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
    """Compute the one of the four numbers that is not given.

    The noise is the least that the budget allows. The number of steps is the largest that the budget allows,
    and at most `mode.most_steps`: MOST_STEPS, or the number for which there are BLT constants.

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
    """Return the largest number of steps that stays within epsilon, by doubling and bisection."""

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
    high = min(2 * low, most)  # does not fit, or equals low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def allowed_steps(mode: Mode, multiplier: float, steps: int, delta: float, budget: float) -> int:
    """Return how many steps of a run that was planned for `steps` stay within the budget."""

    def fits(after: int) -> bool:
        return mode.epsilon(multiplier, steps, delta, after) <= budget

    if not fits(1):
        raise ConfigError(
            f"privacy.epsilon: with a noise multiplier of {multiplier:g} the first step alone costs "
            f"{mode.epsilon(multiplier, steps, delta, 1):.4g}, more than {budget:g}"
        )
    low, high = 1, steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
