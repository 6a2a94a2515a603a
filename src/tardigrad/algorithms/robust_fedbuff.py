"""FedBuff with a robust mean in the place of the mean, for clients that may be malicious."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics
from tardigrad.core.robust import RobustMean, TrimmedMean
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Polynomial, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.step import Step
from tardigrad.core.upload import Received, WeightedSum


class RobustFedBuff(Individual, Step):
    """Makes a step for every K uploads, of which some may be malicious; with any momentum and preconditioner.

    The robust mean is weighted, so late uploads count less. It is then scaled by the sum of the weights over
    K: without trimming, this is FedBuff. The server must see every upload by itself, which excludes secure
    aggregation and central privacy.
    """

    kind: Literal["robust_fedbuff"] = "robust_fedbuff"
    mean: RobustMean = TrimmedMean()
    """trimmed_mean (with fraction) or median."""
    norm_bound: PositiveFloat | None = None
    """Longer uploads are shortened to this norm. They are not refused, because bookkeeping decides whether an
    upload counts without its values."""
    staleness: StalenessLaw = Polynomial(a=0.5)
    """s(staleness)."""

    @property
    def default_staleness_bound(self) -> int | None:
        return self.momentum.default_staleness_bound

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self.begin(model, situation)

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        deltas, weights, metrics = self._bounded(buffer)
        members = tuple(one.member._replace(weight=weight) for one, weight in zip(buffer, weights))
        divisor = sum(member.mass for member in members)
        if sum(weights) > 0:
            r = self.mean(deltas, weights) * (sum(weights) / divisor)
        else:  # no upload has a weight
            r = torch.zeros_like(tensor_of(state, "model"))
        sums = WeightedSum({"delta": r * divisor}, members, version, divisor)
        state["model"] = self.move(state, r, sums)
        return metrics | self.momentum.metrics(state)

    def _bounded(self, buffer: Sequence[Received]) -> tuple[list[Tensor], list[float], Metrics]:
        """Return the deltas within the bound, and their weights. The weight of one that is not finite is
        0."""
        deltas: list[Tensor] = []
        weights: list[float] = []
        clipped = infinite = 0
        for received in buffer:
            delta, weight = received.upload.vectors["delta"], received.member.weight
            if not torch.isfinite(delta).all():
                infinite += 1
                delta, weight = torch.zeros_like(delta), 0.0
            elif self.norm_bound is not None:
                norm = float(torch.linalg.vector_norm(delta, dtype=torch.float64))
                if norm > self.norm_bound:
                    clipped += 1
                    delta = delta * (self.norm_bound / norm)
            deltas.append(delta)
            weights.append(weight)
        metrics = {"not_finite": infinite} | ({} if self.norm_bound is None else {"clipped": clipped})
        return deltas, weights, {name: float(count) for name, count in metrics.items()}
