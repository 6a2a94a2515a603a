"""A payload in a file: written piece by piece, and read through a mapping, so that it takes no memory."""

from __future__ import annotations

import mmap
import os

import numpy as np
from blake3 import blake3

from tardigrad.service.store.contract import StoreError

PIECE = 1 << 20
"""Bytes that are read at a time."""


class PayloadFile:
    """A file that is being written, by one thread at a time."""

    def __init__(self, descriptor: int, name: str = "") -> None:
        """`descriptor`: of an empty file, open for reading and writing; it is closed with this object."""
        self.name = name
        """The name of the payload in its store; "" if the store keeps none."""
        self.size = 0
        self._descriptor = descriptor
        self._closed = False

    def append(self, data: bytes | memoryview) -> None:
        """Write these bytes at the end of the file."""
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._descriptor, view, self.size)
            except OSError as error:
                raise _failed(error) from error
            self.size += written
            view = view[written:]

    def sync(self) -> None:
        """Wait until the contents are on disk."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _failed(error) from error

    def mapping(self) -> mmap.mmap:
        """Return the contents as memory that the kernel reads from the file when it is used. It stays valid
        when the file is closed or deleted; changes to it are not written."""
        return mapped(self._descriptor, self.size)

    def close(self) -> None:
        """Close the file. A file without a name is gone then. A second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Return so many bytes of an open file as private memory."""
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise StoreError(f"an upload cannot be read ({error})") from error


def as_array(mapping: mmap.mmap) -> np.ndarray:
    """Return the bytes of a mapping, without a copy."""
    return np.frombuffer(mapping, np.uint8)


def digest_of_file(descriptor: int) -> bytes:
    """Return the digest of an open file, which is read in pieces."""
    found, piece, offset = blake3(), bytearray(PIECE), 0
    while count := os.preadv(descriptor, [piece], offset):
        found.update(memoryview(piece)[:count])
        offset += count
    return found.digest()


def _failed(error: OSError) -> StoreError:
    """Return the error for a write that failed. Clients are shown it, so it contains no path."""
    return StoreError(error.strerror or str(error))
