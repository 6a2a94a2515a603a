"""The guarantee of one private run: all its numbers, computed from the privacy settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tardigrad.core.participation import Limits
from tardigrad.privacy.accounting import BySampling, Mode
from tardigrad.privacy.blt import FixedBLT
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.noise import Noise


@dataclass(frozen=True)
class Guarantee:
    """All the numbers that the mechanism and the statement need."""

    mode: Mode
    """The mode of accounting."""
    noise: Noise
    noise_multiplier: float
    """Standard deviation of the noise over the norm of a payload."""
    delta: float
    steps: int
    """The number of steps that the noise was planned for."""
    allowed: int
    """How many of these steps the budget allows."""
    clip: float
    """The norm to which uploads are clipped; with an adaptive clip, in the first step."""
    divisor: float
    """The number by which the noisy sum is divided. It is fixed beforehand and never the sum of weights."""
    noise_from: Literal["system", "seed"]
    adaptive: AdaptiveClip | None = None
    version_gamma: float = 0.0
    """Length of an upload's version in the payload, over the clip; 0 if versions are public."""
    overhead: float = 1.0
    """Norm of a whole payload over the clip."""
    limits: Limits | None = None
    """How often a client may take part; None where sampling is trusted."""
    emulated: float = 1.0
    """The factor of the noise on the sum for an emulated cohort: this run's cohort over the emulated one."""
    sampling_made: bool = True
    """Whether the run itself samples as the accounting assumes."""
    void: str | None = None
    """Why the guarantee of this run is void; None if it holds."""

    @property
    def chosen(self) -> Chosen:
        """The noise that the run must keep when it is resumed."""
        toeplitz = self.noise.constants if isinstance(self.noise, FixedBLT) else None
        return Chosen(self.noise_multiplier, self.allowed, toeplitz)

    def spent(self, after: int) -> float:
        """Return the epsilon of the first `after` steps; in Poisson mode always by the fast accounting."""
        mode = self.mode
        if isinstance(mode, BySampling):
            mode = mode._replace(by="rdp")  # an upper bound; the tight accounting takes seconds for each step
        return mode.epsilon(self.noise_multiplier, self.steps, self.delta, after)

    def epsilon(self, after: int | None = None) -> float:
        """Return the epsilon of the whole run, or of its first `after` steps, by the configured
        accounting."""
        return self.mode.epsilon(self.noise_multiplier, self.steps, self.delta, after)
