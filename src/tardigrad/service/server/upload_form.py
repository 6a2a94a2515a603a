"""What clients of a run upload: the vectors of the algorithm, and how they are encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.wire import Layout, size_of

PIECE = 1 << 20
"""The largest number of numbers that are checked at a time."""


class UploadEncoding(Protocol):
    """What the server has to know of an encoding, besides the layer that decodes uploads."""

    @property
    def kind(self) -> str:
        """Its name."""

    def layout(self, name: str, length: int) -> Layout:
        """Return the names, types and lengths of the parts of a vector."""

    def pieces(self, name: str, parts: Vectors, length: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the decoded vector in order, as offsets and pieces."""

    def objection(self, name: str, parts: Vectors, length: int) -> str | None:
        """Return what is wrong with the values of parts that have the right layout, or None."""


@dataclass(frozen=True)
class UploadForm:
    """The form of an upload. Everything that does not have it is refused before memory is taken."""

    vectors: Layout
    """The vectors, as the algorithm has them."""
    encoding: UploadEncoding | None = None
    """None if they travel as they are."""

    @property
    def kind(self) -> str:
        """The name of the encoding, as headers of uploads have it; "" without one."""
        return "" if self.encoding is None else self.encoding.kind

    @cached_property
    def layout(self) -> Layout:
        """The vectors as they travel."""
        encoding = self.encoding
        if encoding is None:
            return self.vectors
        return tuple(part for name, _, length in self.vectors for part in encoding.layout(name, length))

    @cached_property
    def size(self) -> int:
        """The number of bytes of an upload."""
        return size_of(self.layout)

    def objection(self, received: Vectors) -> str | None:
        """Return why these vectors cannot be decoded, or None."""
        if self.encoding is None:
            return None
        found = (self.encoding.objection(name, received, length) for name, _, length in self.vectors)
        return next((objection for objection in found if objection is not None), None)

    def pieces(self, received: Vectors) -> Iterator[Tensor]:
        """Yield the decoded vectors one after the other, in pieces."""
        for name, _, length in self.vectors:
            if self.encoding is None:
                yield from received[name].split(PIECE)
            else:
                for _, piece in self.encoding.pieces(name, received, length):
                    yield piece
