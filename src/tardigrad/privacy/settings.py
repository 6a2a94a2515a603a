"""The privacy table of a config: the settings of a guarantee, and the guarantee that follows from them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace, Poisson
from tardigrad.core.participation import Limits
from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import ByParticipation, BySampling, Mode, allowed_steps
from tardigrad.privacy.blt import BLT, FixedBLT
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.clipping import LEAST, AdaptiveClip
from tardigrad.privacy.grid import cost
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.momentum_payload import gamma_from_overhead, gamma_from_xi
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.poisson import By
from tardigrad.privacy.tree import Tree

LEAST_NOISE = 1e-6
"""The smallest noise multiplier above 0; less noise could not be distinguished from rounding."""
AnyNoise = Annotated[BLT | Tree | Independent, Field(discriminator="kind"), by_name]


class _Privacy(Setting):
    """The settings that all kinds of privacy have."""

    epsilon: PositiveFloat | None = None
    """The budget. The noise is chosen for it; if noise_multiplier is given too, the run ends before it is
    exceeded."""
    delta: float = Field(default=1e-7, gt=0, lt=1)
    """The probability that epsilon does not hold; keep it well below 1 over the number of clients."""
    noise_multiplier: NonNegativeFloat | None = None
    """Standard deviation of the noise over the clip, instead of epsilon or in addition to it."""
    clip: float = Field(default=1.0, ge=LEAST)
    """Longer uploads are scaled down to this norm (Euclidean, of all their vectors together)."""
    noise_from: Literal["system", "seed"] = "system"
    """system: a cryptographic generator. seed: for simulations; anybody who knows the seed can repeat the
    noise, so nothing is private."""

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

    def void(self, pace: Pace | None, buffer: Buffer) -> str | None:
        """Return why the guarantee of a run with these settings is void, or None if it holds."""
        return "; ".join(self._reasons(pace, buffer)) or None

    def _reasons(self, pace: Pace | None, buffer: Buffer) -> list[str]:
        """Return all reasons why the guarantee is void."""
        reasons = []
        if self.noise_multiplier == 0:
            reasons.append("no noise was added (privacy.noise_multiplier = 0)")
        if self.noise_from == "seed":
            reasons.append("the noise came from the run's seed (privacy.noise_from = 'seed')")
        return reasons


class _Central(_Privacy):
    """The settings of noise that the server adds to sums."""

    adaptive: AdaptiveClip | None = None
    """Let the clip follow a quantile of the norms: { quantile = 0.5 }."""
    versions: Literal["public", "private"] = "public"
    """private: the version that an upload started from is protected too (for momentum approximation)."""
    version_overhead: float = Field(default=1.1, gt=1, le=1e6)
    """The factor by which private versions increase the noise of the deltas."""
    version_noise: float | None = Field(default=None, gt=0, le=1e6)
    """xi, the standard deviation of the noise in the count of one version (Eq. 17 of the momentum
    approximation paper), before the noise is correlated over steps, in place of version_overhead. It must be
    above the noise multiplier."""

    @model_validator(mode="after")
    def _noise_of_private_versions(self) -> _Central:
        if self.version_noise is not None and self.versions == "public":
            raise ValueError(
                "version_noise is the noise of private versions, and versions are public; set versions to "
                "'private', or leave version_noise out"
            )
        return self

    def _guarantee(
        self,
        mode: Mode,
        noise: Noise,
        steps: int,
        divisor: float,
        limits: Limits | None,
        void: str | None,
        chosen: Chosen | None,
        emulated: float = 1.0,
        sampling_made: bool = True,
    ) -> Guarantee:
        if chosen is not None:
            multiplier, allowed = chosen.noise_multiplier, chosen.allowed
        else:
            multiplier, allowed = self._noise_and_steps(mode, steps)
        gamma = self._gamma(multiplier) if self.versions == "private" else 0.0
        half = self.adaptive.gamma / 2 if self.adaptive is not None else 0.0
        return Guarantee(
            mode, noise, multiplier, self.delta, steps, allowed, self.clip, divisor, self.noise_from,
            self.adaptive, gamma, math.sqrt(1 + gamma**2 + half**2), limits, emulated, sampling_made, void,
        )  # fmt: skip

    def _gamma(self, multiplier: float) -> float:
        """Return the length of the part of a payload that says its version; the clip of deltas is 1."""
        if self.version_noise is None:
            return gamma_from_overhead(1.0, self.version_overhead)
        return gamma_from_xi(1.0, multiplier, self.version_noise)

    def _noise_and_steps(self, mode: Mode, steps: int) -> tuple[float, int]:
        """Return the noise multiplier, and how many of the steps the budget allows."""
        if self.noise_multiplier is None:
            assert self.epsilon is not None
            return mode.noise_multiplier(self.epsilon, steps, self.delta), steps
        if self.epsilon is None:
            return self.noise_multiplier, steps
        return self.noise_multiplier, allowed_steps(
            mode, self.noise_multiplier, steps, self.delta, self.epsilon
        )

    def _rounding(self, dimension: int, buffer: Buffer) -> float:
        """Return the cost of the grid for uploads of so many coordinates; 0 if their number is not known."""
        if not dimension:
            return 0.0
        versions = (buffer.staleness_bound or 0) + 1 if self.versions == "private" else 0
        return cost(dimension + (self.adaptive is not None) + versions)


class Participation(_Central):
    """No sampling is trusted. A client contributes at most `participations` times, in steps at least
    `separation` apart, and its contributions are hidden even from an observer of every model."""

    kind: Literal["participation"] = "participation"
    noise: AnyNoise = BLT()
    """blt (the least noise in the final model), tree, or independent."""
    participations: PositiveInt = 1
    """How often one client may contribute in the whole run."""
    separation: PositiveInt | None = None
    """The smallest number of steps from one contribution of a client to its next (consecutive steps are 1
    apart). Default: steps / participations."""

    def limits(self, steps: int) -> Limits:
        """Return the limits that the participation ledger enforces."""
        return Limits(self.participations, self.separation or max(1, steps // self.participations))

    def guarantee(
        self,
        steps: int,
        population: int,
        pace: Pace,
        buffer: Buffer,
        dimension: int = 0,
        chosen: Chosen | None = None,
    ) -> Guarantee:
        """Return the guarantee of a run of so many steps.

        `dimension` is the number of coordinates of an upload. `chosen` is the noise that a resumed run began
        with.
        """
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
        noise: Noise = self.noise
        if isinstance(noise, BLT):
            toeplitz = chosen.toeplitz if chosen is not None else None
            noise = FixedBLT(constants=toeplitz or noise.toeplitz(steps, *limits))
        mode = ByParticipation(noise, *limits, self._rounding(dimension, buffer))
        divisor = _divisor(pace, buffer, population)
        return self._guarantee(mode, noise, steps, divisor, limits, self.void(pace, buffer), chosen)


class PoissonSampling(_Central):
    """Each client joins each step with the same small probability, and nobody knows who did, which amplifies
    privacy. This is for simulations: nobody can guarantee such sampling of real devices."""

    kind: Literal["poisson"] = "poisson"
    by: By = "rdp"
    """rdp (fast) or pld (tight, takes a minute)."""
    sampling_rate: float | None = Field(default=None, gt=0, le=1)
    """The probability that a client joins a step. Default: pace.probability of a Poisson pace."""
    emulated_cohort: PositiveInt | None = None
    """Add the noise that a cohort of this size would have, so that a small simulation shows what a large run
    would learn. The guarantee is then that of the large run, not of this one."""

    def _rate(self, pace: Pace | None) -> float | None:
        """Return the probability that a client joins a step, or None if it is not known."""
        if self.sampling_rate is None and isinstance(pace, Poisson):
            return pace.probability
        return self.sampling_rate

    def _is_made(self, pace: Pace | None, buffer: Buffer) -> bool:
        """Return whether the run itself samples as the accounting assumes."""
        return isinstance(pace, Poisson) and buffer.size is None and self._rate(pace) == pace.probability

    def _reasons(self, pace: Pace | None, buffer: Buffer) -> list[str]:
        reasons = super()._reasons(pace, buffer)
        if self.noise_from == "seed":
            reasons.append("who joined was drawn from the seed")
        if self.emulated_cohort is not None:
            reasons.append(
                f"the noise is that of a cohort of {self.emulated_cohort:,} (privacy.emulated_cohort)"
            )
        if not self._is_made(pace, buffer):
            reasons.append("the sampling was assumed and not made (privacy.sampling_rate)")
        return reasons

    def guarantee(
        self,
        steps: int,
        population: int,
        pace: Pace,
        buffer: Buffer,
        dimension: int = 0,
        chosen: Chosen | None = None,
    ) -> Guarantee:
        """Return the guarantee of a run of so many steps.

        `dimension` is the number of coordinates of an upload. `chosen` is the noise that a resumed run began
        with.
        """
        rate = self._rate(pace)
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
        divisor = _divisor(pace, buffer, population)
        emulated = divisor / self.emulated_cohort if self.emulated_cohort is not None else 1.0
        mode = BySampling(rate, self.by, self._rounding(dimension, buffer))
        void, made = self.void(pace, buffer), self._is_made(pace, buffer)
        return self._guarantee(mode, Independent(), steps, divisor, None, void, chosen, emulated, made)


class LocalPrivacy(_Privacy):
    """Each upload is clipped and gets noise of its own before it leaves the client. This is for algorithms
    that need individual uploads (FedAsync, FedAC); it takes much more noise for the same epsilon."""

    kind: Literal["local"] = "local"
    participations: PositiveInt = 1
    """How often one client may contribute in the whole run."""

    def limits(self, steps: int) -> Limits:
        """Return the limits that the participation ledger enforces."""
        return Limits(self.participations, 1)

    def guarantee(
        self,
        steps: int,
        population: int,
        pace: Pace,
        buffer: Buffer,
        dimension: int = 0,
        chosen: Chosen | None = None,
    ) -> Guarantee:
        """Return the guarantee: a client's contributions are `participations` independent Gaussian
        releases."""
        mode = ByParticipation(Independent(), self.participations, 1, cost(dimension))
        multiplier = self.noise_multiplier
        if chosen is not None:
            multiplier = chosen.noise_multiplier
        elif multiplier is None:
            assert self.epsilon is not None
            multiplier = mode.noise_multiplier(self.epsilon, self.participations, self.delta)
        elif self.epsilon is not None:
            spent = mode.epsilon(multiplier, self.participations, self.delta)
            if spent > self.epsilon:
                raise ConfigError(
                    f"privacy.epsilon: a noise multiplier of {multiplier:g} and {self.participations} "
                    f"participations cost {spent:.4g}, more than {self.epsilon:g}"
                )
        return Guarantee(
            mode, Independent(), multiplier, self.delta, self.participations, steps, self.clip, 1.0,
            self.noise_from, limits=self.limits(steps), void=self.void(pace, buffer),
        )  # fmt: skip


Privacy = Annotated[Participation | PoissonSampling | LocalPrivacy, Field(discriminator="kind"), by_name]


def _divisor(pace: Pace, buffer: Buffer, population: int) -> float:
    """Return the fixed number by which a noisy sum is divided: the (expected) number of uploads of a step."""
    if buffer.size is not None:
        return float(buffer.size)
    assert isinstance(pace, Poisson), "only a Poisson pace works without a buffer size"
    return pace.probability * population
