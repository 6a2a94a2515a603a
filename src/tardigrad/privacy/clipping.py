"""Clipping: the norm of all vectors of an upload together is at most the clip."""

from __future__ import annotations

import math

import torch
from pydantic import Field, PositiveFloat

from tardigrad.core.precision import at_least_float32
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Vectors

MARGIN = 1e-6
"""Scaled vectors stay below the clip by this fraction, so that rounding to float32 cannot exceed the clip."""
LEAST = 1e-20
"""The smallest clip. Far below it, float32 numbers are too coarse for the noise."""
TINY = 1e-30
"""The rounding error of a factor below this exceeds the margin."""


class AdaptiveClip(Setting):
    """The clip follows a quantile of the norms: "Differentially Private Learning with Adaptive Clipping"
    (Andrew et al.).

    The payload of an upload has one more coordinate, which says whether its norm is within the clip and takes
    a part of the budget. After a step, clip *= exp(-lr (share within - quantile)). The logarithm of the clip
    is a sum over steps, and correlated noise is small in such sums.
    """

    quantile: float = Field(default=0.5, gt=0, lt=1)
    """The share of uploads whose norm should be within the clip."""
    lr: PositiveFloat = 0.2
    """How fast the clip follows."""
    overhead: float = Field(default=1.02, gt=1)
    """The factor by which the additional coordinate increases the noise of the deltas."""

    @property
    def gamma(self) -> float:
        """The scale of the additional coordinate, gamma (within - 1/2).

        Its length is gamma / 2 for every upload, so the overhead is sqrt(1 + gamma^2 / 4).
        """
        return 2 * math.sqrt(self.overhead**2 - 1)

    def next(self, clip: float, share: float) -> float:
        """Return the clip after a step in which this (noisy) share of uploads was within it.

        >>> AdaptiveClip(quantile=0.5, lr=0.2).next(clip=1.0, share=0.5)
        1.0
        """
        change = -self.lr * (share - self.quantile)
        return max(LEAST, clip * math.exp(min(1.0, max(-1.0, change))))  # limits the effect of much noise


def clipped(vectors: Vectors, clip: float) -> tuple[Vectors, bool]:
    """Return the vectors, scaled down together to the clip if they are longer, and whether they were within
    it.

    Vectors that are not finite are replaced by zeros, because whether an upload takes part in a step must not
    depend on its values. Short floats are scaled in float32, because rounding to a short type could exceed
    the clip.

    >>> vectors, within = clipped({"delta": torch.tensor([3.0, 4.0])}, clip=1.0)
    >>> vectors["delta"].norm().item() <= 1.0, within
    (True, False)
    >>> clipped({"delta": torch.tensor([math.nan, 4.0])}, clip=1.0)
    ({'delta': tensor([0., 0.])}, True)
    """
    norms = [float(torch.linalg.vector_norm(vector, dtype=torch.float64)) for vector in vectors.values()]
    norm = math.hypot(*norms)
    if not math.isfinite(norm):
        return {name: torch.zeros_like(vector) for name, vector in vectors.items()}, True
    if norm <= clip:
        return vectors, True
    factor = clip / norm * (1 - MARGIN)
    scaled = {name: at_least_float32(vector) * factor for name, vector in vectors.items()}
    return (clipped(scaled, clip)[0] if factor < TINY else scaled), False
