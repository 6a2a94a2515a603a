"""Clipping: no upload counts more than the clip, all its vectors taken together."""

from __future__ import annotations

import math

import torch
from pydantic import Field, PositiveFloat

from tardigrad.core.precision import at_least_float32
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Vectors

MARGIN = 1e-6
"""Scaled vectors stay below the clip by this share: rounding to float32 must not carry them above it."""
LEAST = 1e-20
"""No clip is smaller: far below it float32 numbers are too coarse for the noise."""
TINY = 1e-30
"""A factor below this is itself rounded by more than the margin."""


class AdaptiveClip(Setting):
    """The clip follows a quantile of the norms: "Differentially Private Learning with Adaptive Clipping"
    (Andrew et al.).

    Whether an upload's norm is within the clip is one more number of its payload, worth its share of the
    budget. After a step, clip *= exp(-lr (share within - quantile)). The logarithm of the clip is a sum over
    steps, which is what correlated noise keeps small.
    """

    quantile: float = Field(0.5, gt=0, lt=1)
    """The share of uploads whose norm should be within the clip."""
    lr: PositiveFloat = 0.2
    """How fast the clip follows."""
    overhead: float = Field(1.02, gt=1)
    """How many times more noise the deltas get for it."""

    @property
    def gamma(self) -> float:
        """The payload has gamma (within - 1/2), so that everybody's is gamma / 2 long: sqrt(1 + gamma^2 / 4)
        is the overhead."""
        return 2 * math.sqrt(self.overhead**2 - 1)

    def next(self, clip: float, share: float) -> float:
        """The clip after a step in which this (noisy) share was within it.

        >>> AdaptiveClip(quantile=0.5, lr=0.2).next(clip=1.0, share=0.5)
        1.0
        """
        change = -self.lr * (share - self.quantile)
        return max(LEAST, clip * math.exp(min(1.0, max(-1.0, change))))  # much noise must not carry it off


def clipped(vectors: Vectors, clip: float) -> tuple[Vectors, bool]:
    """The vectors, scaled down together to the clip if they are longer; and whether they were within it.

    Vectors that are not finite are replaced by zeros: whether an upload takes part in a step must not depend
    on its values. Short floats are scaled in float32, because rounding to them could exceed the clip.

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
