"""The privacy table of a config: which promise, and what it rests on."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace, Poisson
from tardigrad.core.participation import Limits
from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import ByParticipation, BySampling, Mode
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import LEAST, AdaptiveClip
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.momentum_payload import gamma_from_overhead
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.poisson import By
from tardigrad.privacy.tree import Tree

LEAST_NOISE = 1e-6
"""Less could not be told from rounding."""
AnyNoise = Annotated[BLT | Tree | Independent, Field(discriminator="kind"), by_name]


class _Privacy(Setting):
    epsilon: PositiveFloat | None = None
    """The budget: the noise is chosen for it; with noise_multiplier too, the run ends before it is passed."""
    delta: float = Field(1e-7, gt=0, lt=1)
    """The chance that epsilon does not hold; well below 1 over the number of clients."""
    noise_multiplier: NonNegativeFloat | None = None
    """Standard deviation of the noise over the clip, in place of (or besides) epsilon."""
    clip: float = Field(1.0, ge=LEAST)
    """No upload is longer than this (Euclidean norm of all its vectors together)."""
    noise_from: Literal["system", "seed"] = "system"
    """system: a cryptographic generator. seed: this is a simulation, the noise can be repeated by anybody who
    knows the seed, and nothing is private."""

    @model_validator(mode="after")
    def _budget_or_noise(self) -> _Privacy:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("give epsilon, or noise_multiplier, or both")
        if self.noise_multiplier is not None and 0 < self.noise_multiplier < LEAST_NOISE:
            raise ValueError(
                f"noise_multiplier must be 0 (no noise) or at least {LEAST_NOISE:g}; "
                f"{self.noise_multiplier:g} was given"
            )
        return self


class _Central(_Privacy):
    adaptive: AdaptiveClip | None = None
    """Let the clip follow a quantile of the norms: { quantile = 0.5 }."""
    versions: Literal["public", "private"] = "public"
    """Whether the version that an upload started from is protected too (for momentum approximation)."""
    version_overhead: float = Field(1.1, gt=1)
    """How many times more noise the deltas get for private versions."""

    def _guarantee(
        self,
        mode: Mode,
        noise: Noise,
        steps: int,
        divisor: float,
        limits: Limits | None,
        emulated: float = 1.0,
        sampling_made: bool = True,
    ) -> Guarantee:
        multiplier, allowed = self.noise_multiplier, steps
        if multiplier is None:
            assert self.epsilon is not None
            multiplier = mode.noise_multiplier(self.epsilon, steps, self.delta)
        elif self.epsilon is not None:
            allowed = _allowed(mode, multiplier, steps, self.delta, self.epsilon)
        gamma = gamma_from_overhead(1.0, self.version_overhead) if self.versions == "private" else 0.0
        half = self.adaptive.gamma / 2 if self.adaptive is not None else 0.0
        return Guarantee(
            mode, noise, multiplier, self.delta, steps, allowed, self.clip, divisor, self.noise_from,
            self.adaptive, gamma, math.sqrt(1 + gamma**2 + half**2), limits, emulated, sampling_made,
        )  # fmt: skip


class Participation(_Central):
    """No sampling is trusted: a client contributes at most `participations` times, in steps at least
    `separation` apart. What one client contributed is hidden, even from somebody who sees every model."""

    kind: Literal["participation"] = "participation"
    noise: AnyNoise = BLT()
    """blt (the least noise in the final model), tree, or independent."""
    participations: PositiveInt = 1
    """How often one client may contribute in the whole run."""
    separation: PositiveInt | None = None
    """Steps from one contribution of a client to its next, at least (consecutive steps are 1 apart).
    Default: as many as the steps and participations allow."""

    def limits(self, steps: int) -> Limits:
        """What the ledger enforces."""
        return Limits(self.participations, self.separation or max(1, steps // self.participations))

    def guarantee(self, steps: int, population: int, pace: Pace, buffer: Buffer) -> Guarantee:
        """The promise for a run of so many steps."""
        limits = self.limits(steps)
        size = buffer.size
        if size is not None and steps * size > population * self.participations:
            raise ConfigError(
                f"privacy.participations: {steps} steps of {size} uploads need {steps * size:,} "
                f"contributions, but {population:,} clients may make {self.participations} each; give "
                f"at least {-(-steps * size // population)}, or make fewer steps"
            )
        if size is not None and limits.separation * size > population:
            raise ConfigError(
                f"privacy.separation: in {limits.separation} steps of {size} uploads nobody may come twice, "
                f"but there are {population:,} clients; give at most {population // size}"
            )
        mode = ByParticipation(self.noise, limits.participations, limits.separation)
        return self._guarantee(mode, self.noise, steps, _divisor(pace, buffer, population), limits)


class PoissonSampling(_Central):
    """Each client joins each step with the same small chance and nobody knows who did, which amplifies
    privacy. For simulations: on real devices nobody can promise that."""

    kind: Literal["poisson"] = "poisson"
    by: By = "rdp"
    """rdp (fast) or pld (tight, takes a minute)."""
    sampling_rate: float | None = Field(None, gt=0, le=1)
    """The chance. Default: pace.probability of a Poisson pace."""
    emulated_cohort: PositiveInt | None = None
    """Add the noise that a cohort of this size would have, to see in a small simulation what a large run
    would learn. The guarantee is then that of the large run, not of this one."""

    def guarantee(self, steps: int, population: int, pace: Pace, buffer: Buffer) -> Guarantee:
        """The promise for a run of so many steps."""
        rate = self.sampling_rate
        if rate is None and isinstance(pace, Poisson):
            rate = pace.probability
        if rate is None:
            raise ConfigError(
                f"privacy.sampling_rate: the pace {pace.kind!r} does not sample; give the rate that is to be "
                "assumed, or the pace 'poisson', or privacy.kind 'participation', which assumes nothing"
            )
        if buffer.size is not None and buffer.share != 1:
            raise ConfigError(
                "buffer.once_per_client: with privacy.kind 'poisson' a client counts once in a step; set it "
                "to true, or leave buffer.size out with the pace 'poisson'"
            )
        made = isinstance(pace, Poisson) and buffer.size is None and rate == pace.probability
        divisor = _divisor(pace, buffer, population)
        emulated = divisor / self.emulated_cohort if self.emulated_cohort is not None else 1.0
        return self._guarantee(BySampling(rate, self.by), Independent(), steps, divisor, None, emulated, made)


class LocalPrivacy(_Privacy):
    """Each upload is clipped and gets noise of its own before anybody sees it: for algorithms that need
    individual uploads (FedAsync, FedAC). It takes much more noise for the same epsilon."""

    kind: Literal["local"] = "local"
    participations: PositiveInt = 1
    """How often one client may contribute in the whole run."""

    def limits(self, steps: int) -> Limits:
        """What the ledger enforces."""
        return Limits(self.participations, 1)

    def guarantee(self, steps: int, population: int, pace: Pace, buffer: Buffer) -> Guarantee:
        """The promise: a client's own contributions are that many independent Gaussian releases."""
        mode = ByParticipation(Independent(), self.participations, 1)
        multiplier = self.noise_multiplier
        if multiplier is None:
            assert self.epsilon is not None
            multiplier = mode.noise_multiplier(self.epsilon, self.participations, self.delta)
        elif self.epsilon is not None:
            cost = mode.epsilon(multiplier, self.participations, self.delta)
            if cost > self.epsilon:
                raise ConfigError(
                    f"privacy.epsilon: a noise multiplier of {multiplier:g} and {self.participations} "
                    f"participations cost {cost:.4g}, more than {self.epsilon:g}"
                )
        return Guarantee(
            mode, Independent(), multiplier, self.delta, self.participations, steps, self.clip, 1.0,
            self.noise_from, limits=self.limits(steps),
        )  # fmt: skip


Privacy = Annotated[Participation | PoissonSampling | LocalPrivacy, Field(discriminator="kind"), by_name]


def _divisor(pace: Pace, buffer: Buffer, population: int) -> float:
    if buffer.size is not None:
        return float(buffer.size)
    assert isinstance(pace, Poisson), "without a size, a step takes all who joined"
    return pace.probability * population


def _allowed(mode: Mode, multiplier: float, steps: int, delta: float, budget: float) -> int:
    """How many steps of a run that was planned for `steps` stay within the budget."""

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
