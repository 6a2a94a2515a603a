"""Shared memory between the engine and its workers: slots that named vectors are packed into."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor

from tardigrad.core.upload import Vectors

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
"""Name, dtype, shape and place of each vector in a slot."""

NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux: pages cost nothing until they are touched
LARGEST = 1 << 36
ALIGNMENT = 64


class Slots:
    """Equal slots of memory that is shared with every process forked after it was made."""

    def __init__(self, size: int, count: int) -> None:
        self.size = -(-size // ALIGNMENT) * ALIGNMENT
        count = max(1, min(count, LARGEST // self.size))
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._memory = torch.frombuffer(mmap.mmap(-1, self.size * count, flags=flags), dtype=torch.uint8)
        self._free = list(range(count - 1, -1, -1))
        self._views: dict[tuple[int, Layout], Vectors] = {}  # made so far

    def take(self) -> int | None:
        """A free slot, the most recently used first; nothing if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """The slot may be used for something else."""
        self._free.append(slot)

    def pack(self, slot: int, vectors: Vectors, start: int = 0) -> Layout | None:
        """Copy vectors into a slot, from place `start` on; nothing if they do not fit."""
        layout: list[Any] = []
        place = start
        for name, vector in vectors.items():
            length = vector.numel() * vector.element_size()
            layout.append((name, vector.dtype, tuple(vector.shape), place))
            place += -(-length // ALIGNMENT) * ALIGNMENT
        if place > self.size:
            return None
        packed = tuple(layout)
        for name, view in self.unpack(slot, packed).items():
            view.copy_(vectors[name])
        return packed

    def unpack(self, slot: int, layout: Layout) -> Vectors:
        """The vectors in a slot, without a copy."""
        views = self._views.get((slot, layout))
        if views is None:
            views = {name: self._view(slot, dtype, shape, at) for name, dtype, shape, at in layout}
            self._views[slot, layout] = views
        return dict(views)

    def _view(self, slot: int, dtype: torch.dtype, shape: tuple[int, ...], at: int) -> Tensor:
        begin = slot * self.size + at
        length = torch.Size(shape).numel() * dtype.itemsize
        return self._memory[begin : begin + length].view(dtype).view(shape)


def packed_size(vectors: Vectors) -> int:
    """How many bytes these vectors take in a slot."""
    return sum(-(-v.numel() * v.element_size() // ALIGNMENT) * ALIGNMENT for v in vectors.values())
