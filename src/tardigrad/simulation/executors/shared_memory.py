"""Memory that a process shares with its forked workers, divided into slots that hold named vectors."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from tardigrad.core.upload import Vectors

SlotLayout = tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
"""Name, dtype, shape and offset in the slot of each vector."""

NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux: a page takes no memory until it is written to
LARGEST = 1 << 36
ALIGNMENT = 64
MOST_VERSIONS = 4096
"""Slots for versions. They are only address space until they are used."""


class Slots:
    """Slots of equal size, shared with every process that is forked after they were made."""

    def __init__(self, size: int, count: int) -> None:
        self.size = -(-size // ALIGNMENT) * ALIGNMENT
        count = max(1, min(count, LARGEST // self.size))
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._memory = torch.frombuffer(mmap.mmap(-1, self.size * count, flags=flags), dtype=torch.uint8)
        self._free = list(range(count - 1, -1, -1))
        self._views: dict[tuple[int, SlotLayout], Vectors] = {}  # cache of the views made so far

    def take(self) -> int | None:
        """Return a free slot, the most recently released one first, or None if all are taken."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """Make a slot free again."""
        self._free.append(slot)

    def pack(self, slot: int, vectors: Vectors, size: int, start: int = 0) -> SlotLayout | None:
        """Copy vectors into `size` bytes of a slot from offset `start` on; return None if they do not fit."""
        layout: list[tuple[str, torch.dtype, tuple[int, ...], int]] = []
        offset = start
        for name, vector in vectors.items():
            length = vector.numel() * vector.element_size()
            layout.append((name, vector.dtype, tuple(vector.shape), offset))
            offset += -(-length // ALIGNMENT) * ALIGNMENT
        if offset > start + size:
            return None
        packed = tuple(layout)
        for name, view in self.unpack(slot, packed).items():
            view.copy_(vectors[name])
        return packed

    def unpack(self, slot: int, layout: SlotLayout) -> Vectors:
        """Return the vectors in a slot, without copying them."""
        views = self._views.get((slot, layout))
        if views is None:
            views = {name: self._view(slot, dtype, shape, offset) for name, dtype, shape, offset in layout}
            self._views[slot, layout] = views
        return dict(views)

    def _view(self, slot: int, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        begin = slot * self.size + offset
        length = torch.Size(shape).numel() * dtype.itemsize
        return self._memory[begin : begin + length].view(dtype).view(shape)


class VersionSlots:
    """The published versions, each in a slot. The memory is mapped when the first one is published."""

    def __init__(self) -> None:
        self._slots: Slots | None = None
        self._published: dict[int, tuple[int, SlotLayout]] = {}

    def __len__(self) -> int:
        return len(self._published)

    def publish(self, version: int, vectors: Vectors) -> Vectors | None:
        """Copy a version into a slot and return the copy, or None if all slots are taken."""
        if self._slots is None:
            size = sum(-(-v.numel() * v.element_size() // ALIGNMENT) * ALIGNMENT for v in vectors.values())
            self._slots = Slots(size, MOST_VERSIONS)
        slot = self._slots.take()
        if slot is None:
            return None
        layout = self._slots.pack(slot, vectors, self._slots.size)
        assert layout is not None, "all versions have the same vectors"
        self._published[version] = slot, layout
        return self._slots.unpack(slot, layout)

    def withdraw(self, version: int) -> None:
        """Release the slot of a version, if it has one."""
        if version in self._published:
            assert self._slots is not None
            self._slots.release(self._published.pop(version)[0])

    def position(self, version: int) -> tuple[int, SlotLayout]:
        """Return the slot and the layout of a version, from which a forked process can `read` it."""
        return self._published[version]

    def read(self, slot: int, layout: SlotLayout) -> Vectors:
        """Return the version at a position, without copying it."""
        assert self._slots is not None, "workers are forked after the first version was published"
        return self._slots.unpack(slot, layout)
