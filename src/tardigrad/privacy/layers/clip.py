"""The clip layer: the norm of each upload is at most the clip, and its weight at most 1."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.layers import UploadBuffer, UploadLayer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload, WeightedSum
from tardigrad.errors import RunError
from tardigrad.privacy.clipping import AdaptiveClip, clipped

WITHIN = "within"
"""The name of the extra coordinate that says whether an upload was within the clip."""


class ClipLayer(UploadLayer):
    """Clips each upload when it is added, all its vectors together.

    With an adaptive clip, it also counts the uploads that were within the clip, and adjusts the clip after
    each step by the share that was released.
    """

    name: ClassVar[str] = "clip"
    needs_vectors: ClassVar[bool] = True

    def __init__(self, clip: float, adaptive: AdaptiveClip | None = None) -> None:
        self.clip, self._adaptive = clip, adaptive

    def extras(self, situation: Situation) -> dict[str, int]:
        return {WITHIN: 1} if self._adaptive is not None else {}

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        if not 0 <= delivery.weight <= 1:
            raise RunError(
                f"privacy: trip {delivery.trip} weighs {delivery.weight:g}, but noise hides weights up to 1; "
                "a staleness law must give at most 1, and clients must weigh the same"
            )
        vectors, within = clipped(upload.vectors, self.clip)
        if self._adaptive is not None:
            buffer.extras[WITHIN][0] += self._adaptive.gamma * (within - 0.5)
        return replace(upload, vectors=vectors)

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        if self._adaptive is None:
            return {}
        told = {"clip": self.clip}
        share = float(buffer.extras[WITHIN][0]) / (self._adaptive.gamma * total.divisor) + 0.5
        self.clip = self._adaptive.next(self.clip, share)
        return told

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        return {}, {"clip": self.clip}

    def restore(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        self.clip = cast(float, document["clip"])
