"""The local noise layer: each upload is clipped and gets noise of its own before it leaves the client."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.layers import UploadBuffer, UploadLayer
from tardigrad.core.precision import at_least_float32
from tardigrad.core.upload import Task, Upload, Vectors, WeightedSum
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.grid import add_noise
from tardigrad.privacy.layers.central_noise import Normals


class LocalNoiseLayer(UploadLayer):
    """Clips each upload and adds noise to it, on the client."""

    name: ClassVar[str] = "local noise"

    def __init__(
        self, clip: float, noise_multiplier: float, normals: Normals, epsilon: float | None = None
    ) -> None:
        """Create the layer.

        `normals` is called with the trip. `epsilon` is reported with each step on the server; clients leave
        it out.
        """
        self._clip, self._noise_multiplier = clip, noise_multiplier
        self._normals, self._epsilon = normals, epsilon

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        vectors = self._released(upload.vectors, task.vectors["model"], task.trip)
        # The number of examples and the loss get no noise, so they are not uploaded.
        return replace(upload, vectors=vectors, examples=1, steps=1, loss=0.0)

    def _released(self, vectors: Vectors, start: Tensor, trip: int) -> Vectors:
        """Return the vectors, clipped and with noise.

        Where the model itself is uploaded, its change from the start is clipped and gets noise: the start is
        public, and the model may be far longer than the clip.
        """
        start = at_least_float32(start)
        wide = {name: at_least_float32(vector) for name, vector in vectors.items()}
        changes = {name: v - start if name == "model" else v for name, v in wide.items()}
        clipped_changes, _ = clipped(changes, self._clip)
        scale = self._noise_multiplier * self._clip
        if scale == 0 and clipped_changes is changes:  # finite and within the clip
            return vectors
        released = {name: vector.clone() for name, vector in clipped_changes.items()}
        if scale > 0:
            normal = self._normals(trip)
            for vector in released.values():
                add_noise(vector, normal(vector.numel()).view(vector.shape), scale)
        return {name: start + v if name == "model" else v for name, v in released.items()}

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        return {} if self._epsilon is None else {"epsilon": self._epsilon}
