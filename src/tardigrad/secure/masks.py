"""Masks: the output of a generator, which a client adds to its codes and the helpers take off the sum.

A code is an integer of b bits, and all arithmetic is modulo 2^b. The mask of a seed is the key stream of
AES-256 in counter mode with the seed as its key, read as little-endian integers. A seed is used for one
upload. The vectors of an upload are masked as one sequence of codes, in their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tardigrad.core.upload import Vectors

SEED = 32
"""Bytes of a seed."""
PIECE = 1 << 15
"""Codes that are masked at a time: they stay in the processor's cache while all masks are added to them."""
BLOCK = 16
"""Bytes of a block of the cipher, which it may need beyond its output."""
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32}
"""Types of codes on their way around 2^b, by their bits."""

Codes = np.ndarray
"""A vector of one of the types in `UNSIGNED`."""


def new_seeds(helpers: int) -> tuple[bytes, ...]:
    """Return a new seed for each helper, from the operating system."""
    return tuple(os.urandom(SEED) for _ in range(helpers))


class MaskStream:
    """The mask of a seed, piece by piece."""

    def __init__(self, seed: bytes, bits: int) -> None:
        if len(seed) != SEED:
            raise ValueError(f"a seed has {SEED} bytes, not {len(seed)}")
        self._dtype = np.dtype(UNSIGNED[bits]).newbyteorder("<")
        self._cipher = Cipher(AES256(seed), CTR(bytes(16))).encryptor()

    def take(self, count: int) -> Codes:
        """Return the next `count` numbers of the mask."""
        return np.frombuffer(self._cipher.update(bytes(count * self._dtype.itemsize)), self._dtype)

    def fill(self, zeros: memoryview, place: bytearray) -> None:
        """Write as many bytes of the mask into a place as there are zeros; it is longer by a `BLOCK`."""
        self._cipher.update_into(zeros, place)


def masked(vectors: Vectors, seeds: Iterable[bytes], bits: int) -> Vectors:
    """Return the codes of an upload plus the masks of all seeds, modulo 2^bits, as signed integers.

    >>> import torch
    >>> codes = {"delta/codes": torch.tensor([1, -2, 3], dtype=torch.int32)}
    >>> seeds = [bytes(32), bytes([1]) * 32]
    >>> hidden = masked(codes, seeds, bits=32)["delta/codes"].numpy().view(np.uint32)
    >>> (hidden - weighted_masks([(seeds[0], [1]), (seeds[1], [1])], [3], bits=32)).view(np.int32).tolist()
    [1, -2, 3]
    """
    streams = [MaskStream(seed, bits) for seed in seeds]
    hidden: Vectors = {}
    for name, vector in vectors.items():
        codes = vector.numpy().view(UNSIGNED[bits]).copy()
        for first in range(0, len(codes), PIECE):
            place = codes[first : first + PIECE]
            for stream in streams:
                place += stream.take(len(place))
        hidden[name] = torch.from_numpy(codes.view(vector.numpy().dtype))
    return hidden


def weighted_masks(seeds: Iterable[tuple[bytes, Sequence[int]]], lengths: Sequence[int], bits: int) -> Codes:
    """Return the sum of weight times mask, modulo 2^bits.

    `seeds`: each seed, and its weight in each of the vectors. `lengths`: those of the vectors.
    """
    dtype = np.dtype(UNSIGNED[bits]).newbyteorder("<")
    streams = [(MaskStream(seed, bits), np.array(weights, dtype)) for seed, weights in seeds]
    total, begin = np.zeros(sum(lengths), dtype), 0
    zeros, scratch = memoryview(bytes(PIECE * dtype.itemsize)), bytearray(PIECE * dtype.itemsize + BLOCK)
    for vector, length in enumerate(lengths):
        for first in range(begin, begin + length, PIECE):
            place = total[first : min(first + PIECE, begin + length)]
            mask = np.frombuffer(scratch, dtype, len(place))
            for stream, weights in streams:
                stream.fill(zeros[: place.nbytes], scratch)
                np.multiply(mask, weights[vector], out=mask)
                np.add(place, mask, out=place)
        begin += length
    return total
