"""Noise on a grid: the last bits of a released number must not reveal the value under the noise.

The product scale * noise of float32 numbers does not reach every float32 number. For a scale of 1.5, a third
of the numbers between 1.5 and 2 are never reached. An attacker who knows the sum of all other clients can
subtract it and look for numbers that cannot be noise. Among a million parameters there will be some, and they
prove that another client contributed, whatever epsilon is. So the sum and the noise are both rounded to
multiples of scale / 2^20, as whole numbers, before they are added. The noise reaches every whole number, with
the probability that the Gaussian density gives it, and whatever is computed from the result is
post-processing.

The cost: rounding moves each coordinate of a sum by at most 2^-21 standard deviations of the noise. So it
adds at most sqrt(d) 2^-20 standard deviations to what one client can change in a sum of d coordinates, which
is 0.001 for a million. `cost` is that number; the accounting adds it to the sensitivity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FINENESS = 2.0**20
"""Grid points in one standard deviation. Noise is below 16, so whole numbers are exact in float32."""


def cost(dimension: int) -> float:
    """Return what rounding sums of this many coordinates adds to 1 / noise multiplier.

    >>> round(cost(10**6), 6)
    0.000954
    """
    return math.sqrt(dimension) / FINENESS


def add_noise(total: Tensor, noise: Tensor, scale: float, precision: torch.dtype = torch.float32) -> None:
    """Compute total += scale * noise on the grid, in place. `noise` is overwritten.

    `precision` is the type in which the whole numbers are added; float64 keeps them exact where a coordinate
    of the sum exceeds 16 standard deviations.

    >>> total = torch.tensor([1.0, 2.0])
    >>> add_noise(total, torch.tensor([0.5, -1.0]), scale=2.0)
    >>> total
    tensor([2., 0.])
    """
    whole = total.to(precision)  # the same tensor if it has that type already
    whole.mul_(FINENESS / scale).round_()
    whole.add_(noise.mul_(FINENESS).round_().to(whole.device)).mul_(scale / FINENESS)
    if whole is not total:
        total.copy_(whole)
