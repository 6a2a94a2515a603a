"""What clients of a run upload: names, types and lengths of the vectors, and how they are encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

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

    def pieces(self, received: Vectors) -> Iterator[Tensor]:
        """Yield the decoded vectors one after the other, in pieces."""
        if self.decoder is None:
            for vector in received.values():
                yield from vector.split(PIECE)
        else:
            for _, _, piece in self.decoder.pieces(received):
                yield piece


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
