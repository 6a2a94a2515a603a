"""Robust means: means of a buffer in which some uploads may be malicious.

Formulas from "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (Yin et al.), applied
to each coordinate, and with a weight for each upload.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from tardigrad.core.setting import Setting, by_name

BLOCK = 1 << 16
"""The number of coordinates that are sorted at a time, so that the copies stay small for large models."""
ROUNDING = 1e-9
"""A share of the weight that is closer than this to a half counts as a half."""


class _RobustMean(Setting):
    def __call__(self, vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the robust mean of vectors with these weights, whose sum must be above 0."""
        votes = torch.tensor(weights, dtype=torch.float64, device=vectors[0].device)
        blocks = []
        for start in range(0, len(vectors[0]), BLOCK):
            values = torch.stack([vector[start : start + BLOCK] for vector in vectors]).double()
            values, order = values.sort(dim=0, stable=True)
            blocks.append(self.middle(values, votes[order]))
        return torch.cat(blocks).to(vectors[0].dtype)

    @abstractmethod
    def middle(self, values: Tensor, weights: Tensor) -> Tensor:
        """Return the robust mean of each column of sorted values, with their weights."""


class TrimmedMean(_RobustMean):
    """The mean without the largest and the smallest values of every coordinate.

    >>> mean = TrimmedMean(fraction=0.25)
    >>> mean([torch.tensor([x]) for x in (1.0, 2.0, 4.0, 1000.0)], [1.0] * 4)
    tensor([3.])
    """

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    fraction: float = Field(default=0.4, ge=0, lt=0.5)
    """Share of the weight that is cut off at each end. The mean withstands malicious uploads of less weight
    than that. Set it well above the share of malicious clients, because some buffers have more of them than
    others."""

    def middle(self, values: Tensor, weights: Tensor) -> Tensor:
        after = weights.cumsum(0)
        total = after[-1]
        low, high = self.fraction * total, (1 - self.fraction) * total
        left = torch.minimum(after, high) - torch.maximum(after - weights, low)  # a value may be cut in two
        left = left.clamp_min(0.0)
        return (left * values).sum(0) / left.sum(0)


class Median(_RobustMean):
    """The median of every coordinate: half of the weight lies on each side. It withstands malicious uploads
    of less than half of the weight, and uses least of the other uploads.

    >>> Median()([torch.tensor([x]) for x in (1.0, 2.0, 1000.0)], [1.0, 1.0, 1.0])
    tensor([2.])
    >>> Median()([torch.tensor([x]) for x in (1.0, 2.0, 1000.0)], [3.0, 1.0, 1.0])
    tensor([1.])
    """

    kind: Literal["median"] = "median"

    def middle(self, values: Tensor, weights: Tensor) -> Tensor:
        after = weights.cumsum(0) / weights.sum(0)
        lower = (after < 0.5 - ROUNDING).sum(0, keepdim=True)  # the first that reaches a half
        upper = (after <= 0.5 + ROUNDING).sum(0, keepdim=True)  # the first beyond; another one on a tie
        upper = upper.clamp_max(len(values) - 1)
        return ((values.gather(0, lower) + values.gather(0, upper)) / 2).squeeze(0)


RobustMean = Annotated[TrimmedMean | Median, Field(discriminator="kind"), by_name]
