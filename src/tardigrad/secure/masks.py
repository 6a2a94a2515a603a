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

from tardigrad.core.upload import TypedVector, Vectors

SEED = 32
"""Bytes of a seed."""
SALT = TypedVector("salt", "uint8", 32)
"""Random bytes that a client sends behind its masked codes. A helper knows the mask and is shown the digest
of what was sent; without the salt it could check a guess of the whole upload against that digest."""
PIECE = 1 << 16
"""Codes that are masked at a time: they fit into the processor's cache."""
BLOCK = 16
"""Bytes of a block of AES."""
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32}
"""Types of codes on their way around 2^b, by their bits."""

Codes = np.ndarray
"""A vector of one of the types in `UNSIGNED`."""


def new_seeds(helpers: int) -> tuple[bytes, ...]:
    """Return a new seed for each helper, from the operating system."""
    return tuple(os.urandom(SEED) for _ in range(helpers))


class Scratch:
    """Memory for a piece of a mask. One for many pieces stays in the processor's cache."""

    def __init__(self, size: int) -> None:
        self.zeros = memoryview(bytes(size))
        self.made = bytearray(size + BLOCK - 1)


class MaskStream:
    """The mask of a seed, piece by piece."""

    def __init__(self, seed: bytes, bits: int) -> None:
        if len(seed) != SEED:
            raise ValueError(f"a seed has {SEED} bytes, not {len(seed)}")
        self._dtype = np.dtype(UNSIGNED[bits]).newbyteorder("<")
        self._cipher = Cipher(AES256(seed), CTR(bytes(16))).encryptor()

    def take(self, count: int, scratch: Scratch | None = None) -> Codes:
        """Return the next `count` numbers of the mask. They are in the scratch memory, if it is given, until
        it is used again."""
        scratch, size = scratch or Scratch(count * self._dtype.itemsize), count * self._dtype.itemsize
        self._cipher.update_into(scratch.zeros[:size], scratch.made)
        return np.frombuffer(scratch.made, self._dtype, count)


def masked(vectors: Vectors, seeds: Iterable[bytes], bits: int) -> Vectors:
    """Return the codes of an upload plus the masks of all seeds, modulo 2^bits, as signed integers, and a new
    salt.

    >>> import torch
    >>> codes = {"delta/codes": torch.tensor([1, -2, 3], dtype=torch.int32)}
    >>> seeds = [bytes(32), bytes([1]) * 32]
    >>> hidden = masked(codes, seeds, bits=32)["delta/codes"].numpy().view(np.uint32)
    >>> (hidden - weighted_masks([(seeds[0], [1]), (seeds[1], [1])], [3], bits=32)).view(np.int32).tolist()
    [1, -2, 3]
    """
    streams, scratch = [MaskStream(seed, bits) for seed in seeds], Scratch(PIECE * bits // 8)
    hidden: Vectors = {}
    for name, vector in vectors.items():
        codes = vector.numpy().view(UNSIGNED[bits]).copy()
        for first in range(0, len(codes), PIECE):
            place = codes[first : first + PIECE]
            for stream in streams:
                place += stream.take(len(place), scratch)
        hidden[name] = torch.from_numpy(codes.view(vector.numpy().dtype))
    return salted(hidden)


def salted(vectors: Vectors) -> Vectors:
    """Return the vectors with a new salt."""
    return vectors | {SALT.name: torch.frombuffer(bytearray(os.urandom(SALT.length)), dtype=torch.uint8)}


def weighted_masks(seeds: Iterable[tuple[bytes, Sequence[int]]], lengths: Sequence[int], bits: int) -> Codes:
    """Return the sum of weight times mask, modulo 2^bits.

    `seeds`: each seed, and its weight in each of the vectors. `lengths`: those of the vectors.
    """
    alike: dict[tuple[int, ...], list[MaskStream]] = {}
    for seed, weights in seeds:
        alike.setdefault(tuple(weights), []).append(MaskStream(seed, bits))
    dtype, scratch = UNSIGNED[bits], Scratch(PIECE * bits // 8)
    total, begin = np.zeros(sum(lengths), dtype), 0
    for vector, length in enumerate(lengths):
        for first in range(begin, begin + length, PIECE):
            place = total[first : min(first + PIECE, begin + length)]
            for weights, streams in alike.items():  # masks of one weight are multiplied together
                part = np.zeros_like(place)
                for stream in streams:
                    part += stream.take(len(place), scratch)
                part *= dtype(weights[vector])
                place += part
        begin += length
    return total
