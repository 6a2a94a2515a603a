"""Local privacy: each upload is clipped and gets noise of its own, before the algorithm sees it.

In a simulation the aggregator does it on the client's behalf; nothing else of the run touches the upload.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.algorithm import Individual, Metrics, SumOnly
from tardigrad.core.bookkeeping import Delivery
from tardigrad.core.precision import at_least_float32
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload, Vectors
from tardigrad.privacy.aggregator import Normals
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.grid import add_noise
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
        vectors = self._released(upload.vectors, start, delivery.trip)
        # How many examples a client has and how well it learned them gets no noise, so nobody is told.
        super().add(delivery, replace(upload, vectors=vectors, examples=1, steps=1, loss=0.0), start)

    def _released(self, vectors: Vectors, start: Tensor, trip: int) -> Vectors:
        """Clipped, with noise. Where the model itself is uploaded, its change from the start is: everybody
        knows the start, and the model may be far longer than the clip."""
        start = at_least_float32(start)
        wide = {name: at_least_float32(vector) for name, vector in vectors.items()}
        changes = {name: v - start if name == "model" else v for name, v in wide.items()}
        clipped_changes, _ = clipped(changes, self.guarantee.clip)
        scale = self.guarantee.noise_multiplier * self.guarantee.clip
        if scale == 0 and clipped_changes is changes:  # finite and within the clip
            return vectors
        released = {name: vector.clone() for name, vector in clipped_changes.items()}
        if scale > 0:
            normal = self._normals(trip)
            for vector in released.values():
                add_noise(vector, normal(vector.numel()).view(vector.shape), scale)
        return {name: start + v if name == "model" else v for name, v in released.items()}

    def _move(self) -> Metrics:
        metrics = dict(super()._move() or {})
        if self.guarantee.noise_multiplier > 0:
            metrics["epsilon"] = self.guarantee.epsilon()
        return metrics
