"""A version of the model as clients download it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.wire import CHUNK, layout_of, read, size_of, unpacked
from tardigrad.service.store.payload_file import PayloadFile, as_array


class Broadcast:
    """One version. It has the tensors of the algorithm's state, not copies: a step never changes them in
    place. May be read from any thread."""

    def __init__(self, vectors: Vectors, in_memory: bool = True) -> None:
        """`in_memory`: whether `move_to` would save memory; it does not if the tensors are in a file."""
        self.vectors = vectors
        self.layout = layout_of(vectors)
        self.size = size_of(self.layout)
        """Bytes of a download."""
        self.in_memory = in_memory

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of a download in pieces. The version may be moved meanwhile."""
        for begin in range(0, self.size, CHUNK):
            yield read(self.vectors, begin, min(begin + CHUNK, self.size)).tobytes()

    def move_to(self, file: PayloadFile) -> None:
        """Move the vectors into this file, which is mapped and closed."""
        with closing(file):
            for chunk in self.chunks():
                file.append(chunk)
            self.vectors = unpacked(as_array(file.mapping()), self.layout)
        self.in_memory = False
