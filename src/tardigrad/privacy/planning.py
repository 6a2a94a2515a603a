"""Plan a budget: two of epsilon, noise and steps are given, the third is worked out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import ByParticipation, BySampling, Mode, solve
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.tree import Tree

KINDS: dict[str, type[BLT] | type[Tree] | type[Independent]] = {
    "blt": BLT,
    "tree": Tree,
    "independent": Independent,
}


@dataclass(frozen=True)
class Question:
    """What is given. Leave out one of epsilon, noise_multiplier and steps, or delta."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    steps: int | None = None
    delta: float | None = None
    """Default: 1e-7, unless it is what is sought."""
    participations: int = 1
    separation: int | None = None
    """Default: steps / participations."""
    noise: str = "blt"
    sampling_rate: float | None = None
    """Given: Poisson mode, and participations do not matter."""
    by: str = "rdp"


@dataclass(frozen=True)
class Answer:
    """All the numbers of a plan."""

    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int
    mode: str
    prefix_noise: float
    """Standard deviation, over the clip, of the noise in the sum of all steps' sums: what the model has."""

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def answer(question: Question) -> Answer:
    """Work out what was left open.

    >>> round(answer(Question(epsilon=2.0, steps=2048, noise="tree")).noise_multiplier, 3)
    8.484
    """
    q = question
    if q.noise not in KINDS:
        raise ConfigError(f"--noise {q.noise}: must be one of {', '.join(KINDS)}")
    if q.by not in ("rdp", "pld"):
        raise ConfigError(f"--by {q.by}: must be rdp or pld")
    sought = [name for name in ("epsilon", "noise_multiplier", "steps") if getattr(q, name) is None]
    if len(sought) > 1 or (not sought and q.delta is not None):
        given = f"{' and '.join(sought)} were left open" if sought else "all four were given"
        raise ConfigError(
            "give two of --epsilon, --noise-multiplier and --steps, and the third is worked out; "
            f"or all three without --delta ({given})"
        )
    delta = (q.delta or 1e-7) if sought else None
    separation = q.separation
    if separation is None and q.sampling_rate is None and q.participations > 1:
        if q.steps is None:
            raise ConfigError("--separation: give it, for the number of steps is what is asked")
        separation = max(1, q.steps // q.participations)
    noise: Noise = KINDS[q.noise]()
    mode: Mode = ByParticipation(noise, q.participations, separation or 1)
    said = f"participation: at most {q.participations}, {separation or 1} steps apart, {q.noise} noise"
    if q.sampling_rate is not None:
        noise, mode = Independent(), BySampling(q.sampling_rate, "pld" if q.by == "pld" else "rdp")
        said = f"Poisson sampling at rate {q.sampling_rate:g}, accounted by {q.by}"
    plan = solve(mode, epsilon=q.epsilon, delta=delta, noise_multiplier=q.noise_multiplier, steps=q.steps)
    variance = noise.prefix_variance(plan.steps, plan.steps, q.participations, separation or 1)
    prefix = plan.noise_multiplier * math.sqrt(variance)
    return Answer(plan.epsilon, plan.delta, plan.noise_multiplier, plan.steps, said, prefix)
