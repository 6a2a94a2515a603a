"""Momentum look-ahead: "Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training"
(Ajanthan et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.setting import Setting
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Vectors, WeightedSum


class LookAhead(Setting):
    """The step of momentum look-ahead, from a direction g: the uploads' mean, or what was made of them.

    m = beta m + (1 - beta) g and x = x - lr (g + beta m). The model looks ahead by one step along the
    negative momentum, which is where uploads that are still under way will meet it.
    """

    lr: PositiveFloat = 0.05
    """The server's learning rate (eta). A step along uploads that agree is lr (1 + beta) times as long."""
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in the momentum (gamma)."""
    staleness: StalenessLaw = Constant()
    """s(staleness)."""

    def begin(self, model: Tensor) -> State:
        """Return the state before the first step."""
        return {"momentum": model.new_zeros(model.shape)}

    def ahead(self, state: State) -> Tensor:
        """Return the model one step further along the negative momentum: x - lr beta m."""
        return tensor_of(state, "model") - self.lr * self.beta * tensor_of(state, "momentum")

    def move(self, state: State, g: Tensor) -> None:
        """Put the next model and momentum into the state."""
        state["momentum"] = m = self.beta * state["momentum"] + (1 - self.beta) * g
        state["model"] = state["model"] - self.lr * (g + self.beta * m)


class MomentumLookAhead(SumOnly, LookAhead):
    """Every upload moves the model at once, and the model then looks ahead along the momentum."""

    kind: Literal["momentum_look_ahead"] = "momentum_look_ahead"
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.beta": {"low": 0.0, "high": 0.95},
    }
    start_ahead: bool = False
    """Whether clients start from x - lr beta m instead of x, as HeLoCo's do."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self.begin(model)

    def broadcast(self, state: State) -> Vectors:
        return {"model": self.ahead(state)} if self.start_ahead else super().broadcast(state)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        self.move(state, buffer.mean())
        return {}
