"""The arenas of the memory allocator, each of which keeps memory that was freed in it."""

from __future__ import annotations

import ctypes
import platform

M_ARENA_MAX = -8
"""The number of this parameter in glibc's malloc.h."""
MOST = 2
"""Arenas of a server, at most; otherwise there may be eight for each core."""


def limit_arenas() -> None:
    """Have threads that are started from now on share a few arenas. Other C libraries than glibc are left as
    they are."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, MOST)
