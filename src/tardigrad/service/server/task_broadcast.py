"""A version of the model as clients download it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing

from tardigrad.core.upload import DTYPES, Vectors
from tardigrad.service.protocol.wire import CHUNK, Layout, layout_of, read, size_of, unpacked
from tardigrad.service.store.payload_file import PayloadFile, as_array


class Broadcast:
    """One version. It has the tensors of the algorithm's state, not copies: a step never changes them in
    place. May be read from any thread."""

    def __init__(
        self,
        vectors: Vectors,
        in_memory: bool = True,
        layout: Layout | None = None,
        difference: Vectors | None = None,
    ) -> None:
        """`in_memory`: whether `move_to` would save memory; it does not if the tensors are in a file.
        `layout`: how the vectors travel; default: as they are. `difference`: what leads to this version from
        the one before, if that can be sent instead."""
        self.vectors = vectors
        self.layout = layout or layout_of(vectors)
        self.size = size_of(self.layout)
        """Bytes of a download."""
        self.in_memory = in_memory
        self.difference = difference or {}
        self._mapping: mmap.mmap | None = None  # of the file that the version was moved to

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of a download in pieces. The version may be moved meanwhile."""
        converted: Vectors | None = None
        if self.layout != layout_of(self.vectors):
            converted = {name: self.vectors[name].to(DTYPES[dtype]) for name, dtype, _ in self.layout}
        for begin in range(0, self.size, CHUNK):
            yield read(converted or self.vectors, begin, min(begin + CHUNK, self.size)).tobytes()

    def move_to(self, file: PayloadFile) -> None:
        """Move the vectors into this file, which is mapped and closed."""
        layout = layout_of(self.vectors)
        size = size_of(layout)
        with closing(file):
            for begin in range(0, size, CHUNK):
                file.append(read(self.vectors, begin, min(begin + CHUNK, size)).tobytes())
            self._mapping = file.mapping()
            self.vectors = unpacked(as_array(self._mapping), layout)
        self.in_memory = False

    def rest(self) -> None:
        """Let go of the pages of the file that were read, as for a snapshot."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
