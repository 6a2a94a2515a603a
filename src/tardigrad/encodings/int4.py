"""An eighth of the bytes: integers of 4 bits, two in a byte."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.upload import Vectors
from tardigrad.encodings.blocks import IntegerEncoding
from tardigrad.encodings.encoding import PIECE

ZERO = 8
"""The offset that is added to a code, so that it is not negative; 0 is no code."""


class Int4(IntegerEncoding):
    """Numbers travel as integers from -7 to 7, times a scale for each block of them.

    Rounding is random, so that the mean is right. The error of a number is less than 1/7 of the largest
    magnitude in its block.
    """

    kind: Literal["int4"] = "int4"
    largest: ClassVar[int] = 7
    codes_per_item: ClassVar[int] = 2

    def _codes(self, rows: Tensor, scales: Tensor, random: np.random.Generator) -> Tensor:
        codes = self._integers(rows, scales, random).add_(ZERO).to(torch.uint8)
        if len(codes) % 2:
            codes = torch.cat([codes, codes.new_full((1,), ZERO)])
        pairs = codes.view(-1, 2)
        return pairs[:, 0] | (pairs[:, 1] << 4)

    def _values(self, codes: Tensor) -> Tensor:
        values = torch.empty(len(codes), 2)
        values[:, 0] = codes & 15
        values[:, 1] = codes >> 4
        return values.view(-1).sub_(ZERO)

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        for codes in parts[f"{name}/codes"].split(PIECE):
            if int((codes & 15).min()) == 0 or int(codes.min()) < 16:
                return f"{name}/codes has a code that is not from -7 to 7"
        return super().objection(name, parts, length)
