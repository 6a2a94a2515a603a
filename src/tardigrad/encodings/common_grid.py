"""A common grid: integers that all uploads of a buffer share the scale of, so that they can be added up.

Sums of integers are exact and do not depend on the order. They cannot overflow, because the largest code
follows from how many uploads a sum can have and how much each can weigh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt, field_validator
from torch import Tensor

from tardigrad.core.joint_clip import LEAST
from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import PIECE, Encoding, all_hold, uniforms
from tardigrad.errors import ConfigError

ROUNDED = 1 << 16
"""Numbers that are rounded at a time: in float64 they fit into the processor's cache."""


class Grid(Encoding):
    """Numbers travel as integers of one scale, so that the sum of a buffer is exact in any order.

    Rounding is random, so that the mean is right. Numbers beyond the limit are sent as the limit.

    >>> grid = Grid(bits=16, uploads=10, denominator=16)
    >>> grid.largest, 10 * 16 * grid.largest < 2**15
    (204, True)
    """

    kind: Literal["grid"] = "grid"
    bits: Literal[8, 16, 32] = 32
    """Bits of an integer. The sum of a buffer, weighted, fits into as many."""
    limit: float = Field(default=1.0, ge=1e-20, le=1e20)
    """The largest magnitude of a number."""
    denominator: PositiveInt = 256
    """Weights of uploads are multiples of 1 / denominator, which is a power of two."""
    uploads: PositiveInt | None = None
    """The largest number of uploads in a sum. Default: buffer.size, or all clients where a step has no fixed
    size."""
    clip: float | None = Field(default=None, ge=LEAST)
    """Longer uploads are scaled down to this norm (Euclidean, of all their vectors together) before they are
    rounded, and rounded again until what they have become is not much longer. Default: any length."""
    headroom: PositiveInt | None = None
    """How far the sum of a buffer stays below 2^(bits - 1), for noise. Default: 1."""

    @field_validator("denominator")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1) or value > 2**20:
            raise ValueError("must be a power of two up to 2^20")
        return value

    def for_uploads(self, uploads: int) -> Grid:
        """Return the grid for sums of so many uploads. Raise a ConfigError if it has no room for them."""
        grid = self.model_copy(update={"uploads": max(uploads, self.uploads or 0)})
        if grid.largest < 1:
            most = (2 ** (self.bits - 1) - (self.headroom or 1)) // self.denominator
            raise ConfigError(
                f"encoding.bits: a sum of {grid.uploads} uploads that weigh up to {self.denominator} "
                f"(encoding.denominator) each does not fit into {self.bits} bits, which have room for {most} "
                "such uploads; give more bits or a smaller denominator"
            )
        return grid

    @property
    def largest(self) -> int:
        """The largest code. A sum of all uploads with the largest weight and this code does not overflow."""
        assert self.uploads is not None, "resolved"
        return (2 ** (self.bits - 1) - (self.headroom or 1)) // (self.uploads * self.denominator)

    @property
    def step(self) -> float:
        """The distance of two neighbours on the grid."""
        return self.limit / self.largest

    def norm(self, dimension: int) -> float | None:
        """Return the largest Euclidean norm of all codes of an upload, which have this dimension together;
        None if it is not limited.

        Rounding makes a vector longer. The bound is that of "The Distributed Discrete Gaussian Mechanism for
        Federated Learning with Secure Aggregation" (Kairouz et al.) with beta = exp(-1/2): random rounding
        stays within it with a probability of at least 0.39, and in most cases with nearly 1.

        >>> grid = Grid(uploads=10, clip=1.0)
        >>> grid.norm(10_000) * grid.step < 1.0001
        True
        """
        if self.clip is None:
            return None
        clip, root = self.clip / self.step, math.sqrt(dimension)
        return min(math.sqrt(clip**2 + dimension / 4 + clip + root / 2), clip + root)

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return (TypedVector(f"{name}/codes", f"int{self.bits}", length),)

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        made = torch.empty(len(vector), dtype=getattr(torch, f"int{self.bits}"))
        for first in range(0, len(vector), ROUNDED):  # an even number, so that no random bits are dropped
            piece = vector[first : first + ROUNDED].double().div_(self.step)
            piece.add_(uniforms(random, len(piece))).floor_().clamp_(-self.largest, self.largest)
            made[first : first + ROUNDED] = piece
        return {f"{name}/codes": made}

    def integers(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the codes in pieces, as integers that can be added up."""
        step = PIECE // 2  # they are twice as long as other pieces, and are decoded in float64
        for first in range(0, length, step):
            yield first, parts[f"{name}/codes"][first : first + step].long()

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        for first, codes in self.integers(name, parts, length):
            yield first, codes.double().mul_(self.step).float()

    def decode_sum(self, total: Tensor) -> Tensor:
        """Return a sum of codes times integer weights as float64 numbers."""
        return total.double().mul_(self.step / self.denominator)

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if all_hold(parts[f"{name}/codes"], -self.largest, self.largest):
            return None
        return f"{name}/codes has a code that is not from {-self.largest} to {self.largest}"
