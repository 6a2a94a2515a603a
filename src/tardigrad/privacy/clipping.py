"""The clip of a private run, which may follow the norms of uploads."""

from __future__ import annotations

import math

from pydantic import Field, PositiveFloat

from tardigrad.core.joint_clip import LEAST as LEAST
from tardigrad.core.joint_clip import clipped as clipped
from tardigrad.core.setting import Setting


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
    overhead: float = Field(default=1.02, gt=1, le=1e6)
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
