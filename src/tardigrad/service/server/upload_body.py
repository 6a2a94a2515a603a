"""The bytes of an upload while it is received: in memory if they are few, otherwise in a file."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np
from blake3 import blake3

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.wire import CHUNK, unpacked
from tardigrad.service.server.payload_buffers import PayloadBuffers
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.store.payload_file import PayloadFile, as_array

T = TypeVar("T")
Chunks = deque[bytes | memoryview]
SMALL = 1 << 16
"""Uploads of at most so many bytes are checked in the event loop, which takes less time than to wake up a
thread, and are stored together with others when they are journaled."""
IN_MEMORY = 16 * CHUNK
"""Uploads of more bytes are received into a file."""
TOGETHER = 4 * CHUNK
"""Bytes of chunks that are handed to a thread together, because each time two threads are woken up."""
MOST_CHUNKS = 64
"""Chunks that are handed to a thread together, at most, however small they are."""
UNDER_WAY = TOGETHER + 2 * CHUNK
"""Memory for an upload that is received into a file, whatever its size: the chunks that are written and those
that gRPC has received already, or the piece that is checked."""


class UploadBody(Protocol):
    """The bytes of one upload. Methods may be called from any thread, by one at a time."""

    def put(self, chunks: Chunks) -> None:
        """Take the next bytes, each chunk out of the queue, so that its memory is free again. The caller
        gives no more than the form has."""

    def digest(self) -> bytes:
        """Return the digest of all bytes."""

    def vectors(self) -> Vectors:
        """Return the vectors as views of the bytes."""

    def read(self, each: Callable[[Vectors], Iterator[T]]) -> Iterator[T]:
        """Yield what `each` yields of the vectors, while it reads them once, from the first to the last."""

    def store(self) -> str:
        """Store the bytes, and return their name in the store."""

    def drop(self) -> None:
        """Delete the bytes, because they do not count."""

    def close(self) -> None:
        """Release what the bytes occupy in this process, because they were applied."""


def memory_for(size: int, most: int) -> int:
    """Return how much memory an upload of this size takes while it is received. `most`: the limit for all."""
    return size if size <= min(IN_MEMORY, most) else min(size, UNDER_WAY)


class BodyInMemory:
    """An upload in memory."""

    def __init__(self, form: UploadForm, buffers: PayloadBuffers, write: Callable[[np.ndarray], str]) -> None:
        """`write`: stores the bytes and returns their name."""
        self._form, self._buffers, self._write = form, buffers, write
        self._made: list[np.ndarray] = []  # the buffer, from the first bytes until this is closed
        self._end = 0
        self._digest = blake3()

    def put(self, chunks: Chunks) -> None:
        """Copy the next bytes, and take the digest of each copy while the processor's cache has it."""
        if not self._made:
            self._made.append(self._buffers.take())
        payload = self.payload
        while chunks:
            chunk = chunks.popleft()
            copy = payload[self._end : self._end + len(chunk)]
            copy[:] = np.frombuffer(chunk, np.uint8)
            self._digest.update(copy.data)
            self._end += len(chunk)

    @property
    def payload(self) -> np.ndarray:
        """All bytes."""
        return self._made[0]

    def digest(self) -> bytes:
        """Return the digest of all bytes."""
        return self._digest.digest()

    def vectors(self) -> Vectors:
        """Return the vectors as views of the bytes."""
        return unpacked(self.payload, self._form.layout)

    def read(self, each: Callable[[Vectors], Iterator[T]]) -> Iterator[T]:
        """Yield what `each` yields of the vectors."""
        return each(self.vectors())

    def store(self) -> str:
        """Write the bytes."""
        return self._write(self.payload)

    def drop(self) -> None:
        """Do nothing: the bytes are released when this is closed."""

    def close(self) -> None:
        """Let another upload have the memory."""
        if self._made:
            self._buffers.give_back(self._made)


class BodyInFile:
    """An upload in a file of the store, which is created when the first bytes come.

    A call that is cancelled drops its body while a thread may still write to it.
    """

    def __init__(
        self, form: UploadForm, create: Callable[[], PayloadFile], discard: Callable[[str], None]
    ) -> None:
        """`create` returns an empty payload, `discard` deletes one by its name."""
        self._form, self._create, self._discard = form, create, discard
        self._made: PayloadFile | None = None
        self._dropped = False
        self._lock = threading.Lock()
        self._digest = blake3()

    @property
    def _file(self) -> PayloadFile:
        assert self._made is not None, "bytes have come"
        return self._made

    def put(self, chunks: Chunks) -> None:
        """Write the next bytes."""
        with self._lock:
            if self._dropped:
                return
            if self._made is None:
                self._made = self._create()
            while chunks:
                chunk = chunks.popleft()
                self._digest.update(chunk)
                self._made.append(chunk)

    def digest(self) -> bytes:
        """Return the digest of all bytes."""
        return self._digest.digest()

    def vectors(self) -> Vectors:
        """Return the vectors as views of a mapping of the file."""
        return unpacked(as_array(self._file.mapping()), self._form.layout)

    def read(self, each: Callable[[Vectors], Iterator[T]]) -> Iterator[T]:
        """Yield what `each` yields of the vectors; what it has read of the file does not stay in this
        process."""
        mapping = self._file.mapping()
        for found in each(unpacked(as_array(mapping), self._form.layout)):
            yield found
            mapping.madvise(mmap.MADV_DONTNEED)

    def store(self) -> str:
        """Sync the file."""
        self._file.sync()
        return self._file.name

    def drop(self) -> None:
        """Close and delete the file."""
        with self._lock:
            self._dropped = True
            if self._made is not None:
                self._made.close()
                if self._made.name:
                    self._discard(self._made.name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
