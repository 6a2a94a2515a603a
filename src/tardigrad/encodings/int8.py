"""A quarter of the bytes: integers of 8 bits."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.upload import Vectors
from tardigrad.encodings.blocks import IntegerEncoding


class Int8(IntegerEncoding):
    """Numbers travel as integers from -127 to 127, times a scale for each block of them.

    Rounding is random, so that the mean is right. The error of a number is less than 1/127 of the largest
    magnitude in its block.
    """

    kind: Literal["int8"] = "int8"
    largest: ClassVar[int] = 127
    codes_dtype: ClassVar[str] = "int8"

    def _codes(self, rows: Tensor, scales: Tensor, random: np.random.Generator) -> Tensor:
        return self._integers(rows, scales, random).to(torch.int8)

    def _values(self, codes: Tensor) -> Tensor:
        return codes.float()

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if int(parts[f"{name}/codes"].numpy().min(initial=0)) < -self.largest:
            return f"{name}/codes has a code that is not from -127 to 127"
        return super().objection(name, parts, length)
