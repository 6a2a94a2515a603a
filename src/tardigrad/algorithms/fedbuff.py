"""FedBuff: "Federated Learning with Buffered Asynchronous Aggregation" (Nguyen et al.), Algorithms 1, 2."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Polynomial, StalenessLaw
from tardigrad.core.state import State
from tardigrad.core.step import Step
from tardigrad.core.upload import WeightedSum


class FedBuff(SumOnly, Step):
    """Makes a step for every K uploads and discounts late ones, with any momentum and preconditioner.

    Algorithm 1 divides by K, Appendix B.2 sums: take `lr` K times larger for the sum. Learning-rate
    normalisation (section 5) is `lr_normalisation` of the local training.

    >>> FedBuff(lr=0.5, momentum="ema").momentum
    EMA(kind='ema', beta=0.9)
    """

    kind: Literal["fedbuff"] = "fedbuff"
    staleness: StalenessLaw = Polynomial(a=0.5)
    """s(staleness); section 5 takes (1 + staleness)^-0.5."""

    @property
    def default_staleness_bound(self) -> int | None:
        return self.momentum.default_staleness_bound

    @property
    def uses_versions(self) -> bool:
        return isinstance(self.momentum, Approximation | LightApproximation)

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self.begin(model, situation)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        # lines 8 and 11: r = (1/K) sum of s(tau_i) delta_i; line 14: w = w - eta_g r
        state["model"] = self.move_by_mean(state, buffer)
        return self.momentum.metrics(state)
