"""Clipping: the norm of all vectors of an upload together is at most the clip."""

from __future__ import annotations

import math

import torch

from tardigrad.core.precision import at_least_float32
from tardigrad.core.upload import Vectors

MARGIN = 1e-6
"""Scaled vectors stay below the clip by this fraction, so that rounding to float32 cannot exceed the clip."""
LEAST = 1e-20
"""The smallest clip. Far below it, float32 numbers are too coarse for the noise."""
TINY = 1e-30
"""The rounding error of a factor below this exceeds the margin."""


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
