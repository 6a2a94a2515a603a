"""Integer noise: what a helper adds to the sum of the codes of a batch.

The mechanisms of private runs draw float32 numbers, for which a deviation may be far beyond 2^24 integers.
The last bits of a sum would then be without noise. So a deviation is divided into at most 2^20 cells of equal
width. The mechanism draws whole cells, and an independent number that is uniform within a cell is added.

What is released is then a sum that was rounded to a grid of cells whose offset is random and public, plus
noise in whole cells: the same as the noise of other private runs (see `privacy/grid.py`), with cells of at
most twice the width. `COARSER` times the dimension gives the accounting this cost.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import cast

import numpy as np
import scipy  # loads its sub-packages on first use
from blake3 import blake3
from torch import Tensor

from tardigrad.errors import RunError
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.grid import FINENESS
from tardigrad.privacy.noise import Noise, NoiseState
from tardigrad.privacy.normal import Cryptographic, stream
from tardigrad.privacy.tree import Tree
from tardigrad.secure.policy import HelperNoise

COARSER = 4
"""Cells are at most twice as wide as those of other private runs, so rounding sums of d coordinates costs as
much as that of 4 d."""
WRAPPING = 1e-9
"""The largest chance that any noise of a run is beyond its `tail`."""
DITHER = b"\x80" + bytes(15)
"""The counter from which on a key stream gives the numbers within cells; normal numbers come before."""

StepKeys = Callable[[int], bytes]
"""A function from a step to the 32 bytes that all its noise is drawn from."""


class IntegerNoise:
    """The noise of one helper, step by step."""

    def __init__(
        self, noise: HelperNoise, dimension: int, helper: int = 0, keys: StepKeys | None = None
    ) -> None:
        """Create the noise before the first step.

        `dimension`: of all vectors together. `helper`: the helper's place in the policy, from 0. `keys`:
        where the noise comes from; default: the policy's seed, or else the operating system, whose numbers
        cannot be drawn again.
        """
        self._noise, self._helper = noise, helper
        self._mechanism = noise.noise()
        self._keys = keys or (system_keys if noise.seed is None else seeded_keys(noise.seed))
        self._cell = cell_of(noise.deviation)
        self.state: NoiseState = self._mechanism.start(dimension, noise.steps, 1, 1)
        self._dimension = dimension

    def draw(self, step: int) -> np.ndarray:
        """Return the noise of the step from version `step`, as int64 numbers.

        Steps are drawn in order, each once. The noise of steps in between, whose batches were abandoned, is
        drawn and dropped, so that it stays true which steps are how far apart.
        """
        if step < self.state["step"]:
            raise RunError(f"privacy: the noise of the step from version {step} was drawn before")
        while True:
            at = self.state["step"]
            key = blake3(self._keys(at) + self._helper.to_bytes(4, "little")).digest()
            drawn = self._mechanism.draw(self.state, Cryptographic(key))
            if at == step:
                break
        cells = np.rint(drawn.double().numpy() * (self._noise.deviation / self._cell)).astype(np.int64)
        return cells * self._cell + self._within(key)

    def _within(self, key: bytes) -> np.ndarray | int:
        """Return numbers that are uniform within a cell."""
        if self._cell == 1:
            return 0
        bits = np.frombuffer(stream(key, DITHER).update(bytes(8 * self._dimension)), "<u8")
        return (bits % np.uint64(self._cell)).astype(np.int64) - self._cell // 2

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Return the state: tensors, and the rest as JSON."""
        tensors = {name: value for name, value in self.state.items() if isinstance(value, Tensor)}
        return tensors, {name: value for name, value in self.state.items() if name not in tensors}

    def restore(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        """Continue from a `snapshot()`."""
        self.state = cast(NoiseState, document | tensors)


def cell_of(deviation: float) -> int:
    """Return the width of a cell for noise of this deviation.

    >>> cell_of(1000.0), cell_of(2.0**28)
    (1, 256)
    """
    return max(1, math.ceil(deviation / FINENESS))


def system_keys(step: int) -> bytes:
    """Return a new key from the operating system."""
    return os.urandom(32)


def seeded_keys(seed: int) -> StepKeys:
    """Return keys that depend on nothing but the seed and the step.

    >>> seeded_keys(7)(0) == seeded_keys(7)(0), seeded_keys(7)(0) == seeded_keys(7)(1)
    (True, False)
    """
    return lambda step: blake3(f"tardigrad noise {seed} {step}".encode()).digest()


def largest_deviation(noise: Noise, steps: int) -> float:
    """Return the largest standard deviation of the noise of one step, for a multiplier of 1."""
    if isinstance(noise, BLT):  # a row of the inverse
        return float(np.linalg.norm(noise.toeplitz(steps, 1, 1).inverse_coefficients(steps)))
    if isinstance(noise, Tree):  # one new node, and at most one of each height less
        return math.sqrt(1 + steps.bit_length())
    return 1.0


def tail(noise: Noise, deviation: float, steps: int, dimension: int, helpers: int) -> int:
    """Return what the noise of all helpers together exceeds in no coordinate of no step, except with the
    probability `WRAPPING`."""
    normal = -float(scipy.special.ndtri(WRAPPING / (2 * steps * dimension)))
    largest = normal * math.sqrt(helpers) * largest_deviation(noise, steps) * deviation
    return math.ceil(largest) + helpers * (cell_of(deviation) + 1)
