"""FedAvgM: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (Hsu et al.)."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.momentum import HeavyBall
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.step import Step
from tardigrad.core.upload import WeightedSum


class FedAvgM(SumOnly):
    """FedAvg with heavy-ball momentum on the server: m = beta m + mean delta, x -= lr m.

    The papers on asynchronous momentum use the average (1 - beta) instead of the sum; that is FedBuff's
    `momentum = {kind = "ema"}`, and its lr is 1 / (1 - beta) times larger for the same step.
    """

    kind: Literal["fedavgm"] = "fedavgm"
    synchronous: ClassVar[bool] = True
    lr: PositiveFloat = 1.0
    """The server's learning rate."""
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Momentum; the buffered-aggregation paper found 0.83 to 0.9 best."""

    @cached_property
    def _step(self) -> Step:
        return Step(lr=self.lr, momentum=HeavyBall(beta=self.beta))

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self._step.begin(model, situation)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = self._step.move(state, buffer.mean(), buffer)
        return {}
