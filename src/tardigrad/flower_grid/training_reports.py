"""The nodes' reports about their training, gathered for each step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tardigrad.core.upload import Upload
from tardigrad.flower_grid.node_evaluation import EXAMPLES, weighted_means


class TrainingReports:
    """The losses and metrics of the uploads in the buffer, and the means of the steps that were made."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        """The losses of the uploads in the buffer."""
        self._metrics: list[tuple[float, Mapping[str, float]]] = []
        self.by_version: dict[int, Mapping[str, float]] = {}
        """The means of what nodes reported, by the version that their uploads made."""

    def add(self, upload: Upload, metrics: Mapping[str, float]) -> None:
        """Add the report of an accepted upload."""
        self.losses += [upload.loss] if math.isfinite(upload.loss) else []
        self._metrics.append((upload.examples, metrics))

    def step(self, version: int) -> float | None:
        """Empty the buffer, keep its means for the version that it makes, and return its mean loss."""
        losses, self.losses = self.losses, []
        means, self._metrics = weighted_means(self._metrics), []
        means.pop(EXAMPLES, None)
        self.by_version[version] = means
        return sum(losses) / len(losses) if losses else None
