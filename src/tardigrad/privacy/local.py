"""Local privacy: each upload is clipped and gets noise of its own, before the algorithm sees it.

In a simulation the aggregator does it on the client's behalf; nothing else of the run touches the upload.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.algorithm import Individual, Metrics, SumOnly
from tardigrad.core.bookkeeping import Delivery
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.privacy.aggregator import Normals
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.guarantee import Guarantee


class LocallyPrivateAggregator(Aggregator):
    """The aggregator of a run with local privacy: `normals` are asked for by trip."""

    def __init__(
        self,
        algorithm: SumOnly | Individual,
        model: Tensor,
        situation: Situation,
        guarantee: Guarantee,
        normals: Normals,
        model_average: float | None = None,
    ) -> None:
        super().__init__(algorithm, model, situation, model_average)
        self.guarantee = guarantee
        self._normals = normals

    def add(self, delivery: Delivery, upload: Upload, start: Tensor) -> None:
        vectors, _ = clipped(upload.vectors, self.guarantee.clip)
        scale = self.guarantee.noise_multiplier * self.guarantee.clip
        if scale > 0:
            normal = self._normals(delivery.trip)
            vectors = {
                name: vector + normal(vector.numel()).view(vector.shape).to(vector) * scale
                for name, vector in vectors.items()
            }
        super().add(delivery, replace(upload, vectors=vectors), start)

    def _move(self) -> Metrics:
        metrics = dict(super()._move() or {})
        if self.guarantee.noise_multiplier > 0:
            metrics["epsilon"] = self.guarantee.spent(self.version + 1)
        return metrics
