"""The private versions layer: the version that an upload started from is protected together with its delta.

Momentum approximation needs the number of uploads that started from each version. Each upload has its version
as further coordinates of its payload (see `momentum_payload`). The noisy counts are replaced by the nearest
possible ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload, WeightedSum
from tardigrad.errors import RunError
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.momentum_payload import nearest_row, noisy_row

VERSIONS = "versions"
"""The name of the extra coordinates that count the uploads of each staleness."""
NEGLIGIBLE = 1e-6
"""Uploads with a smaller weight are treated as invisible in the row of versions."""


@dataclass(frozen=True, slots=True)
class NoisyVersions(WeightedSum):
    """A sum whose number of uploads of each version is known only with noise."""

    row: tuple[float, ...] = ()
    """The weights of the versions, the oldest first."""

    def by_version(self, window: int) -> list[float]:
        return [0.0] * (window + 1 - len(self.row)) + list(self.row)


class PrivateVersionsLayer(UploadLayer):
    """Sums up the versions of uploads as coordinates of the payload. It lies above the central noise."""

    name: ClassVar[str] = "private versions"

    def __init__(self, guarantee: Guarantee) -> None:
        self._guarantee = guarantee

    def extras(self, situation: Situation) -> dict[str, int]:
        return {VERSIONS: (situation.staleness_bound or 0) + 1}

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self._bound = surroundings.situation.staleness_bound or 0
        self._fixed = surroundings.situation.buffer is not None and self._guarantee.limits is not None
        law = surroundings.algorithm.law
        self._weights = torch.tensor([law(s) for s in range(self._bound, -1, -1)], dtype=torch.float64)

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        staleness = delivery.staleness
        if not 0 <= staleness <= self._bound:
            raise RunError(
                f"privacy: trip {delivery.trip} has a staleness of {staleness}, but the payload has "
                f"coordinates for 0 to {self._bound}; uploads beyond buffer.staleness_bound must be refused"
            )
        buffer.extras[VERSIONS][staleness] += self._guarantee.version_gamma * delivery.weight
        return upload

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        row = self._row(buffer.extras[VERSIONS], total)
        return NoisyVersions(total.sums, (), total.version, total.divisor, row)

    def _row(self, versions: Tensor, total: WeightedSum) -> tuple[float, ...]:
        """Return the nearest possible row to the noisy weights by version."""
        row = noisy_row(versions, self._guarantee.version_gamma, total.divisor, total.version)
        weights = self._weights
        shows = weights >= NEGLIGIBLE
        row[~shows] = 0
        possible = shows.clone()
        possible[: max(0, len(row) - 1 - total.version)] = False  # versions before 0
        known = 1.0 if self._fixed and bool(shows.all()) else None
        row[possible] = nearest_row(row[possible], weights[possible], known)
        return tuple(row.tolist())
