"""Preconditioners: a learning rate of its own for every coordinate, from the size of past means r.

Formulas from "Adaptive Federated Optimization" (Reddi et al.), Algorithm 2: v starts at 0 and there is
no bias correction. v is always fed with r, not with the momentum.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.momentum import State
from tardigrad.core.setting import Setting, by_name


class _Preconditioner(Setting):
    def start(self, model: Tensor) -> State:
        """The state before the first step."""
        return {}

    def update(self, state: State, r: Tensor) -> None:
        """Take in this step's r."""

    @abstractmethod
    def divide(self, state: State, m: Tensor) -> Tensor:
        """m divided, coordinate by coordinate, by what was taken in so far."""


class NoPreconditioner(_Preconditioner):
    """m as it is."""

    kind: Literal["none"] = "none"

    def divide(self, state: State, m: Tensor) -> Tensor:
        return m


class _SecondMoment(_Preconditioner):
    adaptivity: PositiveFloat = 1e-3
    """Added to the root of v (the papers' tau or epsilon): smaller adapts more."""

    def start(self, model: Tensor) -> State:
        return {"second_moment": model.new_zeros(model.shape)}

    @abstractmethod
    def second_moment(self, v: Tensor, r: Tensor) -> Tensor:
        """The next v."""

    def update(self, state: State, r: Tensor) -> None:
        state["second_moment"] = self.second_moment(state["second_moment"], r)

    def divide(self, state: State, m: Tensor) -> Tensor:
        return m / (state["second_moment"].sqrt() + self.adaptivity)


class Adam(_SecondMoment):
    """v = beta2 v + (1 - beta2) r^2."""

    kind: Literal["adam"] = "adam"
    beta2: float = Field(0.99, ge=0, lt=1)
    """Share of the past in v."""

    def second_moment(self, v: Tensor, r: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * r * r


class AdaGrad(_SecondMoment):
    """v = v + r^2."""

    kind: Literal["adagrad"] = "adagrad"

    def second_moment(self, v: Tensor, r: Tensor) -> Tensor:
        return v + r * r


class Yogi(_SecondMoment):
    """v = v - (1 - beta2) r^2 sign(v - r^2)."""

    kind: Literal["yogi"] = "yogi"
    beta2: float = Field(0.99, ge=0, lt=1)
    """Share of the past in v."""

    def second_moment(self, v: Tensor, r: Tensor) -> Tensor:
        square = r * r
        return v - (1 - self.beta2) * square * (v - square).sign()


Preconditioner = Annotated[NoPreconditioner | Adam | AdaGrad | Yogi, Field(discriminator="kind"), by_name]
