"""No encoding: numbers travel as float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from torch import Tensor

from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import HUGE, PIECE, Encoding, all_hold


class Float32(Encoding):
    """Uploads travel as they are, in float32 (a model in short floats: in these). This is the default."""

    kind: Literal["float32"] = "float32"

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return (TypedVector(name, "float32", length),)

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        return {name: vector}

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, length, PIECE):
            yield first, parts[name][first : first + PIECE].clone()

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        return None if all_hold(parts[name], -HUGE, HUGE) else f"{name} has a number that is not finite"
