"""Preconditioners: a learning rate for every coordinate, from the size of past means r.

Formulas from "Adaptive Federated Optimization" (Reddi et al.), Algorithm 2, and AMSGrad: v starts at 0 (or at
`v0` of Yogi) and there is no bias correction unless it is set for AMSGrad. v is computed from r, not from the
momentum.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.setting import Setting, by_name
from tardigrad.core.state import State, tensor_of

LARGEST_START = 1e30
"""The largest v before the first step, which float32 can represent."""


class _Preconditioner(Setting):
    def start(self, model: Tensor) -> State:
        """Return the state before the first step."""
        return {}

    def update(self, state: State, r: Tensor) -> None:
        """Update the state with the r of this step."""

    @abstractmethod
    def divide(self, state: State, m: Tensor) -> Tensor:
        """Return m divided, coordinate by coordinate, by the root of the second moment so far."""


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
        """Return the next v."""

    def update(self, state: State, r: Tensor) -> None:
        state["second_moment"] = self.second_moment(tensor_of(state, "second_moment"), r)

    def divide(self, state: State, m: Tensor) -> Tensor:
        return m / (tensor_of(state, "second_moment").sqrt() + self.adaptivity)


class Adam(_SecondMoment):
    """v = beta2 v + (1 - beta2) r^2."""

    kind: Literal["adam"] = "adam"
    beta2: float = Field(default=0.99, ge=0, lt=1)
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
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share of the past in v."""
    v0: float = Field(default=0.0, ge=0, le=LARGEST_START)
    """v before the first step. v changes by at most (1 - beta2) r^2 a step, so that a small start lasts."""

    def start(self, model: Tensor) -> State:
        return {"second_moment": torch.full_like(model, self.v0)}

    def second_moment(self, v: Tensor, r: Tensor) -> Tensor:
        square = r * r
        return v - (1 - self.beta2) * square * (v - square).sign()


class AMSGrad(Adam):
    """The largest of Adam's v so far, in every coordinate."""

    kind: Literal["amsgrad"] = "amsgrad"  # type: ignore[assignment]
    bias_correction: bool = False
    """Divide v by 1 - beta2^t at the t-th step, because it started at 0."""

    def start(self, model: Tensor) -> State:
        largest = model.new_zeros(model.shape)
        return super().start(model) | {"largest_second_moment": largest, "second_moment_steps": 0}

    def update(self, state: State, r: Tensor) -> None:
        super().update(state, r)
        largest, newest = tensor_of(state, "largest_second_moment"), tensor_of(state, "second_moment")
        state["largest_second_moment"] = torch.maximum(largest, newest)
        state["second_moment_steps"] += 1

    def divide(self, state: State, m: Tensor) -> Tensor:
        v, t = tensor_of(state, "largest_second_moment"), int(state["second_moment_steps"])
        if self.bias_correction and t > 0:
            v = v / (1 - self.beta2**t)
        return m / (v.sqrt() + self.adaptivity)


Preconditioner = Annotated[
    NoPreconditioner | Adam | AdaGrad | Yogi | AMSGrad, Field(discriminator="kind"), by_name
]
