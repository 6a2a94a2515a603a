"""Memory of uploads that is used again, because memory that is new to the process is slow to write."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from tardigrad.service.store.direct_write import page_aligned

KEPT = 1 << 25
"""Bytes of unused buffers that are kept, at most."""


class PayloadBuffers:
    """Buffers of one size that begin at pages. May be used from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[np.ndarray] = deque()

    def take(self) -> np.ndarray:
        """Return a buffer with any contents."""
        try:
            return self._free.pop()
        except IndexError:
            return page_aligned(self._size)

    def give_back(self, holder: list[np.ndarray]) -> None:
        """Take the buffer out of a list, and keep it for another upload unless somebody still has a reference
        to it: a tensor, or a thread whose call was cancelled."""
        buffer = holder.pop()
        # references: this variable and the argument of the call; below, the view and the argument
        unused = sys.getrefcount(buffer) == 2 and sys.getrefcount(buffer.base) == 2
        if unused and (len(self._free) + 1) * self._size <= KEPT:
            self._free.append(buffer)
