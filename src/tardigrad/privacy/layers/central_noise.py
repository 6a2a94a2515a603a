"""The central noise layer: it adds noise to the sum of a buffer.

The order of a private step is: clip, weigh, sum, add noise to the sum, divide by a fixed number. The
algorithm gets the noisy sum instead of the sum. Everything that it computes from it (momentum, Adam, the
model) is post-processing, which costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.core.precision import is_short
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError
from tardigrad.privacy.grid import add_noise
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.clip import ClipLayer
from tardigrad.privacy.noise import NoiseState, Normal

Normals = Callable[[int], Normal]
"""A function from a step (or, for local privacy, a trip) to the generator of its normal numbers."""

BUDGET = "privacy budget"
"""The reason with which a run ends when its budget is spent."""


class CentralNoiseLayer(UploadLayer):
    """Adds noise to the sum of a buffer, and to the extras of all layers.

    The sums of a model in short floats are float64 until noise is added. In float32, rounding could let one
    client change a sum of many uploads by more than the clip.
    """

    name: ClassVar[str] = "central noise"
    needs_only_sums: ClassVar[bool] = True
    sums_of_short_floats: ClassVar[torch.dtype] = torch.float64

    def __init__(self, guarantee: Guarantee, normals: Normals, clip: ClipLayer) -> None:
        self.guarantee = guarantee
        self._normals, self._clip = normals, clip
        self.noise: NoiseState = {}

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        guarantee, situation = self.guarantee, surroundings.situation
        self._shapes, self._device, self._extras = surroundings.shapes, surroundings.device, list(extras)
        self._short = is_short(surroundings.dtype)
        self._hides_who_joined = guarantee.limits is None and situation.buffer is None
        self._opening = float(situation.population) if surroundings.algorithm.opening else None
        uses_versions = surroundings.algorithm.uses_versions
        if uses_versions and self._hides_who_joined and not guarantee.version_gamma:
            raise ConfigError(
                "privacy.versions: momentum approximation uses how many uploads a step has, which is private "
                "where all who joined make a step; set it to 'private'"
            )
        if guarantee.noise_multiplier > 0:
            self._sizes = [*(shape.numel() for shape in self._shapes.values()), *extras.values()]
            limits = guarantee.limits
            k, b = (limits.participations, limits.separation) if limits else (guarantee.steps, 1)
            self.noise = guarantee.noise.start(sum(self._sizes), guarantee.steps, k, b)

    def objection(self, version: int) -> str | None:
        return BUDGET if version >= self.guarantee.allowed else None

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        """Return the sums with noise, also if nobody joined. Nothing else leaves the mechanism."""
        guarantee = self.guarantee
        sums = {
            name: total.sums.get(name, torch.zeros(shape, device=self._device))
            for name, shape in self._shapes.items()
        }
        if guarantee.noise_multiplier > 0:
            noise = guarantee.noise.draw(self.noise, self._normals(total.version))
            unit = guarantee.noise_multiplier * guarantee.overhead * guarantee.emulated
            parts = list(noise.split(self._sizes))
            precision = self.sums_of_short_floats if self._short else torch.float32
            for vector, part in zip(sums.values(), parts):
                add_noise(vector, part.view(vector.shape), unit * self._clip.clip, precision)
            for name, part in zip(self._extras, parts[len(sums) :], strict=True):
                add_noise(buffer.extras[name], part, unit)
        if self._short:
            sums = {name: vector.float() for name, vector in sums.items()}
        members = () if self._hides_who_joined else total.members
        return WeightedSum(sums, members, total.version, self._divisor(total.version))

    def _divisor(self, version: int) -> float:
        """Return a number that is fixed beforehand: K, or the number of all clients in an opening."""
        return self._opening if self._opening and version == 0 else self.guarantee.divisor

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        if self.guarantee.noise_multiplier == 0:
            return {}
        return {"epsilon": self.guarantee.spent(total.version + 1)}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        tensors = {name: value for name, value in self.noise.items() if isinstance(value, Tensor)}
        return tensors, {name: value for name, value in self.noise.items() if name not in tensors}

    def restore(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        self.noise = cast(NoiseState, document | tensors)
