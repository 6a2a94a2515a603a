"""Generators of standard normal numbers.

A guarantee needs `Cryptographic`, because nobody can guess or repeat its numbers. `Seeded` is for
simulations: anyone who knows the seed can repeat its numbers, so the guarantee is void.

**Floating point.** Privacy is proved for real numbers. Mironov ("On Significance of the Least Significant
Bits for Differential Privacy") showed for Laplace noise, and Jin et al. ("Are We There Yet? Timing and
Floating-Point Attacks on Differential Privacy Systems") for Gaussian noise made of floats, that the last bits
of a released number can reveal the value under the noise, because a sampler cannot reach every float. There
are two measures against that. First, uniforms have 53 bits and arithmetic is in float64, rounded to float32
at the end. About 2^29 float64 numbers lie behind each float32 number, so the gaps between the numbers that
the sampler reaches are far smaller than the precision that is kept. Second, `grid` rounds the noise and the
sum to one grid, so that no bit of a released number is without noise. This defeats the known attacks but is
not a proof; a proof would need an exact sampler of the rounded (or the discrete) Gaussian on that grid.

The largest number is sqrt(-2 log 2^-53) = 8.57, which a true normal exceeds with probability 1e-17.
"""

from __future__ import annotations

import math
import os

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

CHUNK = 1 << 14
"""The number of pairs computed at a time; they fit into the processor's cache."""


class Seeded:
    """Normal numbers from a seed.

    Give every step a key of its own, so that a resumed run draws the same numbers.

    >>> torch.equal(Seeded(7)(3), Seeded(7)(3))
    True
    """

    def __init__(self, key: int) -> None:
        self._generator = torch.Generator().manual_seed(key)

    def __call__(self, dimension: int) -> Tensor:
        return torch.randn(dimension, generator=self._generator)


class Cryptographic:
    """Normal numbers from AES-256 in counter mode, with a key from the operating system.

    Give every step a key of its own, and destroy the key when it is no longer needed. Then nobody who takes
    over the machine later can compute an old vector again.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._stream = stream(os.urandom(32) if key is None else key)

    def __call__(self, dimension: int) -> Tensor:
        stream = self._stream
        normals = torch.empty(dimension)
        zeros = bytes(16 * CHUNK)
        bits = bytearray(16 * CHUNK + 15)  # the cipher requires up to a block more
        uniforms = torch.frombuffer(bits, dtype=torch.int64, count=2 * CHUNK)
        for start in range(0, dimension, 2 * CHUNK):
            stream.update_into(zeros, bits)
            _box_muller(uniforms, normals[start : start + 2 * CHUNK])
        return normals


def _box_muller(bits: Tensor, out: Tensor) -> None:
    """Compute two normals from each pair of uniforms: sqrt(-2 log u) times (cos, sin) of 2 pi v."""
    uniforms = (bits >> 11).double()  # 53 bits, with a sign
    uniforms.add_(2.0**52 + 1).mul_(2.0**-53)  # in (0, 1], so that the logarithm is finite
    u, v = uniforms.chunk(2)
    u.log_().mul_(-2).sqrt_()
    v.mul_(2 * math.pi)
    half = min(len(u), len(out))
    torch.mul(u[:half], v[:half].cos(), out=out[:half])
    rest = len(out) - half
    torch.mul(u[:rest], v[:rest].sin_(), out=out[half:])


def stream(key: bytes, start: bytes = bytes(16)) -> CipherContext:
    """Return a cipher that encrypts zeros to random bytes: AES in counter mode, from this counter value
    on."""
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
