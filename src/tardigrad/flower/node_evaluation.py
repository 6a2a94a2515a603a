"""Evaluation by the nodes: evaluate messages of one version, and the mean of what they report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tardigrad.core.events import ModelEvaluated, RunPosition
from tardigrad.data.evaluation import RESERVED
from tardigrad.flower.named_arrays import Arrays


@dataclass
class NodeEvaluation:
    """One version that nodes evaluate. A node that is training is asked when it is back."""

    where: RunPosition
    arrays: Arrays
    wanted: set[int]
    """Nodes that are still to be asked."""
    asked: set[int] = field(default_factory=set)
    """Nodes that were asked and have not answered."""
    _reports: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    def answered(self, node: int, examples: float, metrics: Mapping[str, float]) -> None:
        """Note what a node has found; without metrics, that it has found nothing."""
        self.asked.discard(node)
        if metrics and examples > 0:
            self._reports.append((examples, metrics))

    def left(self, connected: set[int]) -> None:
        """Do not wait for nodes that are not connected."""
        self.wanted &= connected
        self.asked &= connected

    @property
    def complete(self) -> bool:
        """Whether nobody is left to ask or to wait for."""
        return not self.wanted and not self.asked

    def event(self) -> ModelEvaluated | None:
        """Return the mean of the reports, weighted by examples; None if there is no report."""
        means = weighted_means(self._reports)
        if not means:
            return None
        examples = round(sum(weight for weight, _ in self._reports))
        return ModelEvaluated(
            *self.where, federated=True, clients=len(self._reports), examples=examples, metrics=means
        )


def weighted_means(reports: list[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the weighted mean of each metric over the reports that have a finite value of it.

    >>> weighted_means([(1, {"loss": 4.0}), (3, {"loss": 0.0, "accuracy": 0.5})])
    {'loss': 1.0, 'accuracy': 0.5}
    """
    sums: dict[str, tuple[float, float]] = {}
    for weight, metrics in reports:
        for name, value in metrics.items():
            if math.isfinite(value) and name not in RESERVED:
                mass, total = sums.get(name, (0.0, 0.0))
                sums[name] = mass + weight, total + weight * value
    return {name: total / mass for name, (mass, total) in sums.items() if mass > 0}
