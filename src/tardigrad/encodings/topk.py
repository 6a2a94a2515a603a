"""The largest numbers and their positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.encoding import PIECE
from tardigrad.encodings.sparse import SparseEncoding


class TopK(SparseEncoding):
    """The numbers of the largest magnitudes, with their positions, of 4 bytes each.

    It is not right on average, so clients keep what was not sent and add it to their next upload
    ("Sparsified SGD with Memory").
    """

    kind: Literal["topk"] = "topk"

    def layout(self, name: str, length: int) -> tuple[TypedVector, ...]:
        count = self.count(length)
        return (
            TypedVector(f"{name}/positions", "int32", count),
            TypedVector(f"{name}/values", "float32", count),
        )

    def encode(self, name: str, vector: Tensor, random: np.random.Generator) -> Vectors:
        count, magnitudes = self.count(len(vector)), vector.abs().numpy()
        least = np.partition(magnitudes, len(vector) - count)[len(vector) - count]
        larger = np.flatnonzero(magnitudes > least)
        equal = np.flatnonzero(magnitudes == least)[: count - len(larger)]  # the first of them
        positions = torch.from_numpy(np.sort(np.concatenate([larger, equal])))
        return {f"{name}/positions": positions.int(), f"{name}/values": vector[positions]}

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        positions, values = parts[f"{name}/positions"], parts[f"{name}/values"]
        sent = 0
        for first in range(0, length, PIECE):
            piece = torch.zeros(min(PIECE, length - first))
            here = positions[sent : sent + PIECE]
            here = here[: int(torch.searchsorted(here, first + len(piece)))]
            piece[here.long() - first] = values[sent : sent + len(here)]
            sent += len(here)
            yield first, piece

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        before = -1
        for here in parts[f"{name}/positions"].split(PIECE):
            if int(here[0]) <= before or bool((here[1:] <= here[:-1]).any()):
                return f"{name}/positions must be increasing numbers from 0 to {length - 1}"
            before = int(here[-1])
        if before >= length:
            return f"{name}/positions has {before}, but {name} has {length} numbers"
        return super().objection(name, parts, length)
