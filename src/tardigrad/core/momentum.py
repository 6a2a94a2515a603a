"""Momentum: from the buffer's mean r to the direction m that the model moves along."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum


class MomentumKind(Setting):
    default_staleness_bound: ClassVar[int | None] = None
    """The value of buffer.staleness_bound if the config has none."""
    uses_versions: ClassVar[bool] = False
    """Whether it uses which versions the uploads of a buffer started from."""

    def start(self, model: Tensor, situation: Situation) -> State:
        """Return the state before the first step."""
        return {}

    def metrics(self, state: State) -> dict[str, float]:
        """Return metrics of the step that was just made."""
        return {}

    @abstractmethod
    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        """Return m for this step, and keep in `state` what later steps need."""


class NoMomentum(MomentumKind):
    """m = r."""

    kind: Literal["none"] = "none"

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        return r


class EMA(MomentumKind):
    """m = beta m + (1 - beta) r: an average, so the learning rate keeps its meaning."""

    kind: Literal["ema"] = "ema"
    beta: float = Field(default=0.9, gt=-1, lt=1)
    """Share of the past; negative values are allowed (they can help asynchronous training)."""

    def start(self, model: Tensor, situation: Situation) -> State:
        return {"momentum": model.new_zeros(model.shape)}

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        state["momentum"] = m = self.beta * state["momentum"] + (1 - self.beta) * r
        return m


class HeavyBall(MomentumKind):
    """m = beta m + r: a sum, so the learning rate acts 1 / (1 - beta) times stronger than with `ema`."""

    kind: Literal["heavy_ball"] = "heavy_ball"
    beta: float = Field(default=0.9, gt=-1, lt=1)
    """Share of the past."""

    def start(self, model: Tensor, situation: Situation) -> State:
        return {"momentum": model.new_zeros(model.shape)}

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        state["momentum"] = m = self.beta * state["momentum"] + r
        return m


class Nesterov(MomentumKind):
    """m = beta m + (1 - beta) r, and the direction looks one step ahead: beta m + (1 - beta) r.

    With the Adam preconditioner this is Nadam.
    """

    kind: Literal["nesterov"] = "nesterov"
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past."""

    def start(self, model: Tensor, situation: Situation) -> State:
        return {"momentum": model.new_zeros(model.shape)}

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        state["momentum"] = m = self.beta * state["momentum"] + (1 - self.beta) * r
        return self.beta * m + (1 - self.beta) * r
