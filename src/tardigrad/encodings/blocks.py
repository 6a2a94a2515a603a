"""Blocks: consecutive numbers of a vector that share a scale."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import HUGE, PIECE, TINY, LossyEncoding, all_hold, uniforms


def _checked(value: object) -> object:
    """Return the size of a block if it is one; pydantic would list what is wrong with either type."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if value == "vector" or (8 <= number <= 65536 and number % 8 == 0):
        return value
    raise ValueError("must be a multiple of 8 from 8 to 65536, or 'vector'")


Block = Annotated[
    Annotated[int, Field(ge=8, le=65536, multiple_of=8)] | Literal["vector"], BeforeValidator(_checked)
]


class BlockEncoding(LossyEncoding):
    """The base of the encodings that send a small code for each number, and a scale for each block.

    A number is decoded as its code times the scale of its block.
    """

    largest: ClassVar[int] = 1
    """The largest code."""
    codes_dtype: ClassVar[str] = "uint8"
    codes_per_item: ClassVar[int] = 1
    """How many codes are in one number of the type that travels."""

    block: Block = 1024
    """Consecutive numbers that share a scale, a multiple of 8; or "vector": all numbers of a vector do."""

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return (
            TypedVector(f"{name}/codes", self.codes_dtype, -(-length // self.codes_per_item)),
            TypedVector(f"{name}/scales", "float32", -(-length // self._size(length))),
        )

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        common = self._limited(vector[None]) if self.block == "vector" else None
        codes, scales = [], []
        for rows in self._rows(vector):
            scales.append(self._limited(rows) if common is None else common)
            codes.append(self._codes(rows, scales[-1], random))
        scales = scales if common is None else [common]
        return {f"{name}/codes": torch.cat(codes), f"{name}/scales": torch.cat(scales)}

    def _rows(self, vector: Tensor) -> Iterator[Tensor]:
        """Yield the vector as matrices with a row for each block, or, if there is only one, for each piece.
        The last row may be shorter."""
        size = PIECE if self.block == "vector" else self.block
        whole = len(vector) // size * size
        for rows in vector[:whole].view(-1, size).split(max(1, PIECE // 2 // size)):  # they stay in the cache
            if len(rows):
                yield rows
        if whole < len(vector):
            yield vector[None, whole:]

    def _limited(self, rows: Tensor) -> Tensor:
        return self._scales(rows).clamp_(TINY, 0.999999 * HUGE / self.largest)  # products are finite

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        first = 0
        for values, rows, scales in self._unscaled(name, parts, length):
            for row, scale in zip(rows, scales[:, None].split([len(row) for row in rows])):
                row.mul_(scale)
            yield first, values
            first += len(values)

    def norms(self, name: str, parts: Vectors, length: int) -> Iterator[float]:
        """Yield the norm of each piece; the codes are not multiplied by their scales first."""
        for _, rows, scales in self._unscaled(name, parts, length):
            squares = np.concatenate([_squares(row.numpy()) for row in rows])
            yield math.sqrt(squares @ np.square(scales.numpy(), dtype=np.float64))  # which does not overflow

    def _unscaled(
        self, name: str, parts: Vectors, length: int
    ) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
        """Yield pieces of the codes: as float32 numbers, as matrices with a row for each block, of which the
        last may be shorter, and the scale of each row."""
        codes, scales = parts[f"{name}/codes"], parts[f"{name}/scales"]
        size, per = self._size(length), self.codes_per_item
        step = PIECE if size > PIECE else PIECE // size * size
        for first in range(0, length, step):
            last = min(first + step, length)
            values = self._values(codes[first // per : -(-last // per)])[: last - first]
            whole = len(values) // size * size
            rows = [values[:whole].view(-1, size)] if whole else []
            if whole < len(values):
                rows.append(values[None, whole:])
            yield values, rows, scales[first // size : -(-last // size)]

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if not all_hold(parts[f"{name}/scales"], TINY, HUGE / self.largest):
            return (
                f"{name}/scales has a scale that is not a number from {TINY:.3g} to {HUGE / self.largest:.3g}"
            )
        return None

    def _size(self, length: int) -> int:
        return max(1, length) if self.block == "vector" else self.block

    @abstractmethod
    def _scales(self, rows: Tensor) -> Tensor:
        """Return the scale of each row."""

    @abstractmethod
    def _codes(self, rows: Tensor, scales: Tensor, random: np.random.Generator) -> Tensor:
        """Return the codes of the rows, as they travel, in one vector."""

    @abstractmethod
    def _values(self, codes: Tensor) -> Tensor:
        """Return codes as float32 numbers, in a new tensor."""


def _squares(rows: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each row."""
    sums: np.ndarray = rows[:, None, :] @ rows[:, :, None]
    return sums.reshape(-1)


class IntegerEncoding(BlockEncoding):
    """The base of the encodings with integers as codes, rounded up or down at random.

    It is the quantiser of QSGD ("QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    section 3.1) with the largest magnitude of a block in place of the norm, as in its experiments: a number x
    of a block with the scale s becomes floor(x / s + u), where u is uniform on [0, 1).
    """

    def _scales(self, rows: Tensor) -> Tensor:
        return torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_()).div_(self.largest)

    def _integers(self, rows: Tensor, scales: Tensor, random: np.random.Generator) -> Tensor:
        """Return the codes as a vector of float32 numbers."""
        rounded = uniforms(random, rows.numel()).view(rows.shape)
        rounded.add_(rows / scales[:, None]).floor_()
        return rounded.clamp_(-self.largest, self.largest).view(-1)
