"""Numbers at random positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import HUGE, PIECE, Encoding, all_hold
from tardigrad.encodings.sparse import SparseEncoding


class RandomK(SparseEncoding):
    """Numbers at random positions, which the server draws again from a seed.

    The vector is divided into as many groups of neighbours as numbers are sent, and one of each group is
    chosen. With error feedback numbers are sent as they are. Without, they are multiplied by the size of
    their group, so that the mean is right.
    """

    kind: Literal["randomk"] = "randomk"

    def feeding_back(self) -> Encoding:
        return self.model_copy(update={"error_feedback": True})

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return (
            TypedVector(f"{name}/seed", "int32", 2),
            TypedVector(f"{name}/values", "float32", self.count(length)),
        )

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        seed = torch.from_numpy(random.integers(0, 2**31 - 1, 2, dtype=np.int32))
        positions, sizes = self._chosen(_generator(seed), 0, self.count(len(vector)), len(vector))
        values = vector[torch.from_numpy(positions)]
        if not self.error_feedback:
            values = values.mul_(torch.from_numpy(sizes)).clamp_(-HUGE, HUGE)
        return {f"{name}/seed": seed, f"{name}/values": values}

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        values, count = parts[f"{name}/values"], self.count(length)
        random = _generator(parts[f"{name}/seed"])
        step = max(1, PIECE * count // max(1, length))  # groups in a piece
        for group in range(0, count, step):
            until = min(group + step, count)
            first = group * length // count
            positions, _ = self._chosen(random, group, until, length)
            piece = torch.zeros(until * length // count - first)
            piece[torch.from_numpy(positions - first)] = values[group:until]
            yield first, piece

    def _chosen(
        self, random: np.random.Generator, first: int, last: int, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions that are chosen from these groups, and the sizes of the groups."""
        bounds = np.arange(first, last + 1) * length // self.count(length)
        sizes = np.diff(bounds)
        chosen = np.minimum((random.random(last - first) * sizes).astype(np.int64), sizes - 1)
        return bounds[:-1] + chosen, sizes

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        if not all_hold(parts[f"{name}/seed"], 0, 2**31 - 1):
            return f"{name}/seed has a negative number"
        return super().objection(name, parts, length)


def _generator(seed: Tensor) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed.tolist()))
