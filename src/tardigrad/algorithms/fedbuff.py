"""FedBuff: "Federated Learning with Buffered Asynchronous Aggregation" (Nguyen et al.), Algorithms 1, 2."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Polynomial, StalenessLaw
from tardigrad.core.state import State
from tardigrad.core.step import Step
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError


class FedBuff(SumOnly, Step):
    """Makes a step for every K uploads and discounts late ones, with any momentum and preconditioner.

    Algorithm 1 divides by K, Appendix B.2 sums: `combine`. Learning-rate normalisation (section 5) is
    `lr_normalisation` of the local training.

    >>> FedBuff(lr=0.5, momentum="ema").momentum
    EMA(kind='ema', beta=0.9)
    """

    kind: Literal["fedbuff"] = "fedbuff"
    staleness: StalenessLaw = Polynomial(a=0.5)
    """s(staleness); section 5 takes (1 + staleness)^-0.5."""
    combine: Literal["mean", "sum"] = "mean"
    """mean: r is the weighted sum of the buffer divided by K (Algorithm 1); sum: it is not divided (Appendix
    B.2), which without a preconditioner is the mean with an lr that is K times larger."""

    def check_pace(self, pace: Pace, buffer: Buffer) -> None:
        super().check_pace(pace, buffer)
        if self.combine == "sum" and buffer.weights == "examples":
            raise ConfigError(
                "algorithm.combine: a sum whose weights are numbers of examples has no natural size; use "
                "'mean', or leave buffer.weights out"
            )

    def combined(self, buffer: WeightedSum) -> Tensor:
        """Return r, of which the step is made."""
        return buffer.mean() if self.combine == "mean" else buffer.sums["delta"]

    @property
    def default_staleness_bound(self) -> int | None:
        return self.momentum.default_staleness_bound

    @property
    def uses_versions(self) -> bool:
        return self.momentum.uses_versions

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self.begin(model, situation)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        # lines 8 and 11: r = (1/K) sum of s(tau_i) delta_i; line 14: w = w - eta_g r
        if self.combine == "mean":
            state["model"] = self.move_by_mean(state, buffer)
        else:
            state["model"] = self.move(state, self.combined(buffer), buffer)
        return self.momentum.metrics(state)
