"""Half of the bytes: bfloat16, with stochastic rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import PIECE, LossyEncoding, all_hold, raw

LARGEST = float(torch.finfo(torch.bfloat16).max)


class BFloat16(LossyEncoding):
    """Numbers travel as bfloat16, rounded up or down at random, so that the mean is right.

    The error of a number x is less than |x| / 128.
    """

    kind: Literal["bfloat16"] = "bfloat16"

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return (TypedVector(f"{name}/values", "bfloat16", length),)

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        # bfloat16 is the upper half of float32. Adding random bits to the lower half before it is cut off
        # carries into the upper half as often as the lower half is large.
        lower = raw(random, len(vector), np.uint16).astype(np.int32)
        bits = vector.clamp(-LARGEST, LARGEST).view(torch.int32)
        bits = bits.add_(torch.from_numpy(lower)).bitwise_and_(-0x10000)
        return {f"{name}/values": bits.view(torch.float32).to(torch.bfloat16)}

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        values = parts[f"{name}/values"]
        for first in range(0, length, PIECE):
            yield first, values[first : first + PIECE].float()

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if all_hold(parts[f"{name}/values"], -LARGEST, LARGEST):
            return None
        return f"{name}/values has a number that is not finite"
