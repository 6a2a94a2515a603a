"""The definition of an encoding.

An encoding turns a vector into its parts, which are flat tensors of other types such as `delta/codes` (int8)
and `delta/scales` (float32), and back. What travels is known before anything is encoded (`layout`), and a
vector can be decoded in pieces, so that nobody has to hold all of it in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.draws import key
from tardigrad.core.setting import Setting
from tardigrad.core.upload import TypedVector, Vectors

PIECE = 1 << 19
"""The largest number of numbers that are decoded or checked at a time. They are so many because each call of
torch releases Python's lock, for which threads of a server wait. No bit depends on it."""
TINY = float(torch.finfo(torch.float32).tiny)
"""The smallest scale. A block of zeros has this one, so that a scale of 0 is always an error."""
HUGE = float(torch.finfo(torch.float32).max)


class Encoding(Setting):
    """The base of all encodings."""

    @property
    def feeds_back(self) -> bool:
        """Whether clients add what earlier encodings lost to their next upload."""
        return False

    def feeding_back(self) -> Encoding:
        """Return the encoding as it is used for a vector with error feedback."""
        return self

    @abstractmethod
    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        """Return the names, types and lengths of the parts of a vector."""

    @abstractmethod
    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        """Return the parts of a finite float32 vector on the CPU."""

    @abstractmethod
    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the decoded vector in order, as offsets and pieces of at most about `PIECE` numbers.

        The parts are only read, in order, so they may be on disk. A piece is the caller's own.
        """

    @abstractmethod
    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        """Return what is wrong with the values of parts that have the right layout, or None.

        What passes can be decoded, and is finite.
        """

    def norms(self, name: str, parts: Vectors, length: int) -> Iterator[float]:
        """Yield the norm of each piece of the decoded vector, in order, from parts without an objection."""
        for _, piece in self.pieces(name, parts, length):
            yield float(torch.linalg.vector_norm(piece))

    def decode(self, name: str, parts: Vectors, length: int) -> Tensor:
        """Return the whole decoded vector."""
        pieces = [piece for _, piece in self.pieces(name, parts, length)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces or [torch.zeros(0)])


class LossyEncoding(Encoding):
    """The base of the encodings that can have error feedback."""

    error_feedback: bool = False
    """Whether each client keeps what an encoding loses, and adds it to its next upload."""

    @property
    def feeds_back(self) -> bool:
        return self.error_feedback


def encoding_random(trip_seed: int) -> np.random.Generator:
    """Return the generator of the random numbers with which the upload of a trip is encoded. `trip_seed`: the
    seed that the trip is trained with."""
    return np.random.Generator(np.random.SFC64(key(trip_seed, "encoding")))


def uniforms(random: np.random.Generator, count: int) -> Tensor:
    """Return numbers that are uniform on [0, 1), of 24 bits."""
    bits = torch.from_numpy(raw(random, count, np.int32))
    return bits.bitwise_right_shift_(8).float().mul_(2.0**-24).add_(0.5)


def raw(random: np.random.Generator, count: int, dtype: type[np.integer]) -> np.ndarray:
    """Return integers of random bits. It is several times as fast as the generator's own methods."""
    words = -(-count * np.dtype(dtype).itemsize // 8)
    return np.asarray(random.bit_generator.random_raw(words)).view(dtype)[:count]


def all_hold(values: Tensor, low: float, high: float) -> bool:
    """Return whether all values are numbers from `low` to `high`. They are read in pieces."""
    for piece in values.split(PIECE):
        least, most = torch.aminmax(piece)
        if not (low <= float(least) and float(most) <= high):  # NaN compares as false
            return False
    return True
