"""FedAdam, FedAdaGrad, FedYogi: "Adaptive Federated Optimization" (Reddi et al.), Algorithm 2."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.momentum import EMA
from tardigrad.core.preconditioner import LARGEST_START, AdaGrad, Adam, Preconditioner, Yogi
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.step import Step
from tardigrad.core.upload import WeightedSum


class _FedOpt(SumOnly):
    synchronous: ClassVar[bool] = True
    lr: PositiveFloat = 0.01
    """The server's learning rate (eta)."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in m."""
    adaptivity: PositiveFloat = 1e-3
    """Added to the root of v (the paper's tau)."""

    @property
    @abstractmethod
    def _preconditioner(self) -> Preconditioner: ...

    @cached_property
    def _step(self) -> Step:
        # m = b1 m + (1 - b1) delta;  x = x - lr m / (sqrt(v) + tau)
        return Step(lr=self.lr, momentum=EMA(beta=self.beta1), preconditioner=self._preconditioner)

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self._step.begin(model, situation)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = self._step.move(state, buffer.mean(), buffer)
        return {}


class FedAdam(_FedOpt):
    """FedAvg with Adam on the server."""

    kind: Literal["fedadam"] = "fedadam"
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share of the past in v."""

    @property
    def _preconditioner(self) -> Preconditioner:
        return Adam(beta2=self.beta2, adaptivity=self.adaptivity)


class FedAdaGrad(_FedOpt):
    """FedAvg with AdaGrad on the server."""

    kind: Literal["fedadagrad"] = "fedadagrad"
    beta1: float = Field(default=0.0, ge=0, lt=1)
    """Share of the past in m; the paper takes none for AdaGrad."""

    @property
    def _preconditioner(self) -> Preconditioner:
        return AdaGrad(adaptivity=self.adaptivity)


class FedYogi(_FedOpt):
    """FedAvg with Yogi on the server."""

    kind: Literal["fedyogi"] = "fedyogi"
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share of the past in v."""
    v0: float = Field(default=0.0, ge=0, le=LARGEST_START)
    """v before the first step; the paper has it at least adaptivity squared."""

    @property
    def _preconditioner(self) -> Preconditioner:
        return Yogi(beta2=self.beta2, adaptivity=self.adaptivity, v0=self.v0)
