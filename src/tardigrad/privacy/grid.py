"""Noise on a grid: the last bits of what is released must not tell what is under the noise.

scale * noise, made of float32 numbers, cannot be every float32 number: for a scale of 1.5 a third of those
between 1.5 and 2 are never reached. Who knows the sum of all other clients subtracts it and looks for numbers
that cannot be noise; among a million parameters some will be, and then one client more was there, for certain
and whatever epsilon is. So the sum and the noise are both rounded to multiples of scale / 2^20, as whole
numbers, before they are added. Every whole number can be noise, with the probability that the Gaussian
curve gives it; what is made of the result afterwards is post-processing.

The price: rounding moves each coordinate of a sum by at most 2^-21 standard deviations of the noise, so it
adds at most sqrt(d) 2^-20 standard deviations to what one client can change in a sum of d coordinates; 0.001
for a million. `cost` is that number; the accounting counts it with the sensitivity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FINENESS = 2.0**20
"""Steps of the grid in one standard deviation. Noise is below 16, so whole numbers stay exact in float32."""


def cost(dimension: int) -> float:
    """What rounding sums of so many coordinates adds to 1 / noise multiplier.

    >>> round(cost(10**6), 6)
    0.000954
    """
    return math.sqrt(dimension) / FINENESS


def add_noise(total: Tensor, noise: Tensor, scale: float, precision: torch.dtype = torch.float32) -> None:
    """total += scale * noise, on the grid. Changes `noise` too.

    `precision`: the type that the whole numbers are added in; float64 keeps them exact where the sum is more
    than 16 standard deviations long.

    >>> total = torch.tensor([1.0, 2.0])
    >>> add_noise(total, torch.tensor([0.5, -1.0]), scale=2.0)
    >>> total
    tensor([2., 0.])
    """
    whole = total.to(precision)  # the same tensor where it has that type
    whole.mul_(FINENESS / scale).round_()
    whole.add_(noise.mul_(FINENESS).round_().to(whole.device)).mul_(scale / FINENESS)
    if whole is not total:
        total.copy_(whole)
