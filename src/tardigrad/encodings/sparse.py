"""Sparse encodings: only a share of the numbers travels."""

from __future__ import annotations

import math

from pydantic import Field

from tardigrad.core.upload import Vectors
from tardigrad.encodings.encoding import HUGE, LossyEncoding, all_hold
from tardigrad.errors import ConfigError


class SparseEncoding(LossyEncoding):
    """The base of the encodings that send a share of the numbers, as float32; the others count as 0."""

    share: float = Field(default=0.01, ge=1e-4, le=1)
    """The share of the numbers that is sent."""
    error_feedback: bool = True
    """Whether each client keeps what was not sent, and adds it to its next upload."""

    def count(self, length: int) -> int:
        """Return how many numbers of a vector are sent."""
        if length > 2**31 - 1:
            raise ConfigError(
                f"encoding.kind: a vector of {length:,} numbers is too long for positions of 32 bits; use "
                "'int8' or 'int4'"
            )
        return min(length, math.ceil(self.share * length))

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if all_hold(parts[f"{name}/values"], -HUGE, HUGE):
            return None
        return f"{name}/values has a number that is not finite"
