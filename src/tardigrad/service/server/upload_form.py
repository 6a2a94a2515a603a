"""The form of a run's uploads: names, types and lengths of the vectors, and how they are encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import DecodingLayer
from tardigrad.core.upload import Task, Vectors
from tardigrad.service.protocol.wire import Layout, layout_of, size_of

PIECE = 1 << 20
"""The largest number of numbers that are checked at a time."""


@dataclass(frozen=True)
class UploadForm:
    """The form of an upload. Everything that does not have it is refused before memory is taken."""

    layout: Layout
    """The vectors as they travel."""
    decoder: DecodingLayer | None = None
    """The layer that decodes uploads; None if they are not encoded."""

    @property
    def kind(self) -> str:
        """The name of the encoding, as headers of uploads have it; "" without one."""
        return "" if self.decoder is None else self.decoder.kind

    @cached_property
    def size(self) -> int:
        """The number of bytes of an upload."""
        return size_of(self.layout)

    def objection(self, received: Vectors) -> str | None:
        """Return why these vectors cannot be decoded, or None."""
        return None if self.decoder is None else self.decoder.upload_objection(received)

    def norms(self, received: Vectors) -> Iterator[float]:
        """Yield the norms of the decoded vectors' pieces, in order. They are not finite if a number is not,
        or if they overflow."""
        if self.decoder is not None:
            yield from self.decoder.norms(received)
            return
        for vector in received.values():
            for piece in vector.split(PIECE):
                yield float(torch.linalg.vector_norm(piece))

    def finite(self, received: Vectors) -> Iterator[bool]:
        """Yield for each piece whether its numbers are finite, which those of an encoded upload without an
        objection are."""
        if self.decoder is None:
            for vector in received.values():
                for piece in vector.split(PIECE):
                    yield all(bool(torch.isfinite(end)) for end in torch.aminmax(piece))  # passes NaN on


def upload_form_of(aggregator: Aggregator) -> UploadForm:
    """Return what clients of this algorithm upload."""
    task = Task(-1, "", 0, aggregator.broadcast(), 0.0)
    rule = aggregator.algorithm.rule(task, {}, lr=1.0)
    with torch.no_grad():
        plain = layout_of(rule.finish(rule.start.clone(), 1, 1.0))
    decoder = next((layer for layer in aggregator.layers if isinstance(layer, DecodingLayer)), None)
    if decoder is None:
        return UploadForm(plain)
    return UploadForm(decoder.layout({vector.name: vector.length for vector in plain}), decoder)
