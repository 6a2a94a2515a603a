"""Keep freed memory in the process that trains.

What a minibatch needs is freed after its step and needed again for the next one. By default, glibc returns
memory at the end of its heap to the system and maps large blocks anew each time, so that every minibatch
pays for thousands of page faults: a fifth of the processor time of a small CNN or LSTM.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of settings in malloc.h
LARGEST_BLOCK = 32 * 2**20
"""Larger blocks are still mapped one by one; glibc allows no larger value."""
FREE_AT_END = 256 * 2**20
"""Bytes at the end of the heap that may be free before they are returned to the system."""


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory for this process and those that it forks. Return whether it does: other
    allocators are left alone, and so are settings that the user has made in the environment."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(TRIM_THRESHOLD, FREE_AT_END))


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in this process, and return it to the system at the end."""
    kept = keep_freed_memory()
    try:
        yield
    finally:
        if kept:
            ctypes.CDLL(None).malloc_trim(0)
