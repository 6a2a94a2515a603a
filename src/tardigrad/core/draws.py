"""Random draws that depend only on (seed, purpose, index).

There is no generator with a state: a draw can be repeated at any time, in any order, in any process. Draws
are made in blocks, because one generator for each draw would cost more than the rest of the planner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

BLOCK = 4096


def key(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for this purpose and these numbers.

    >>> key(0, "delay", 7) == key(0, "delay", 7), key(0, "delay", 7) == key(1, "delay", 7)
    (True, False)
    """
    text = f"{seed}/{purpose}/" + "/".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


class Draws:
    """An infinite sequence of draws from one distribution.

    >>> u = Draws(0, "example", lambda random, n: random.random(n))
    >>> u[10_000] == Draws(0, "example", lambda random, n: random.random(n))[10_000]
    True
    """

    def __init__(self, seed: int, purpose: str, sample: Callable[[np.random.Generator, int], np.ndarray]):
        self._seed, self._purpose, self._sample = seed, purpose, sample
        self._blocks: dict[int, list[float]] = {}
        self._newest = -1
        self._values: list[float] = []

    def __getitem__(self, index: int) -> float:
        number, offset = divmod(index, BLOCK)
        if number != self._newest:
            self._values = self.block(number)
            self._newest = number
        return self._values[offset]

    def block(self, number: int) -> list[float]:
        """Return the draws from `number * BLOCK` on, as many as a block has."""
        block = self._blocks.get(number)
        if block is None:
            random = np.random.default_rng(key(self._seed, self._purpose, number))
            block = self._sample(random, BLOCK).tolist()
            if len(self._blocks) >= 512:  # indices of trips only grow: discard the oldest
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return block


def uniform(random: np.random.Generator, n: int) -> np.ndarray:
    """Return n draws that are uniform on [0, 1)."""
    return random.random(n)
