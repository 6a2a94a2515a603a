"""What a private run promises, in numbers: the settings of privacy, worked out for one run."""

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
    """Everything that the mechanism and the statement need to know."""

    mode: Mode
    """How it is accounted for."""
    noise: Noise
    noise_multiplier: float
    """Standard deviation of the noise over the norm of a payload."""
    delta: float
    steps: int
    """What the noise was planned for."""
    allowed: int
    """How many of them the budget allows."""
    clip: float
    """The norm that an upload is clipped to, at first."""
    divisor: float
    """What the noisy sum is divided by: fixed beforehand, never the sum of weights."""
    noise_from: Literal["system", "seed"]
    adaptive: AdaptiveClip | None = None
    version_gamma: float = 0.0
    """Length of an upload's version in the payload, over the clip; 0: versions are public."""
    overhead: float = 1.0
    """Norm of a whole payload over the clip."""
    limits: Limits | None = None
    """How often a client may take part; nothing where sampling is trusted."""
    emulated: float = 1.0
    """The noise on the sum is scaled by this: cohort over the cohort that is emulated."""
    sampling_made: bool = True
    """Whether the run itself samples as the accounting says; else somebody has to vouch for it."""
    void: str | None = None
    """Why this run keeps nothing of the promise; None if it keeps it."""

    @property
    def chosen(self) -> Chosen:
        """What a run must go on with when it is resumed."""
        toeplitz = self.noise.constants if isinstance(self.noise, FixedBLT) else None
        return Chosen(self.noise_multiplier, self.allowed, toeplitz)

    def spent(self, after: int) -> float:
        """The epsilon of the first so many steps."""
        mode = self.mode
        if isinstance(mode, BySampling):
            mode = mode._replace(by="rdp")  # the tight one takes seconds a time; this is above it
        return mode.epsilon(self.noise_multiplier, self.steps, self.delta, after)

    def epsilon(self, after: int | None = None) -> float:
        """The epsilon of the whole run, or of its first `after` steps, as tight as it is known."""
        return self.mode.epsilon(self.noise_multiplier, self.steps, self.delta, after)
