"""DC-ASGD: "Asynchronous Stochastic Gradient Descent with Delay Compensation" (Zheng et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Received

EPSILON = 1e-7
"""Added to the mean square before its root is taken. It is the value in common use; the
paper could not be read."""


class DCASGD(Individual):
    """Every upload is corrected for what has changed since its client started.

    The gradient at the current model x is about g + H (x - x_start), and lambda g * g, coordinate by
    coordinate, takes the place of the Hessian H. The delta of a client takes the place of g. So the
    server needs each upload by itself, and the model that it started from.

    A delta is the sum of a client's learning rates times g. With the adaptive lambda that factor cancels, if
    delta is well above 3e-4 (the root of EPSILON) in each coordinate; a constant lambda must be divided by
    it.
    """

    kind: Literal["dc_asgd"] = "dc_asgd"
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.compensation": {"low": 0.01, "high": 10.0, "log": True},
    }
    lr: PositiveFloat = 0.1
    """The server's learning rate (eta)."""
    compensation: NonNegativeFloat = 1.0
    """lambda (lambda_0 if it is adaptive): how much of the change is corrected for."""
    adaptive: bool = True
    """Whether lambda is divided, coordinate by coordinate, by the root of a running mean of g * g (the
    paper's DC-ASGD-a), or constant (DC-ASGD-c)."""
    decay: float = Field(default=0.95, ge=0, lt=1)
    """Share of the past in the mean of g * g (the paper's m)."""
    staleness: StalenessLaw = Constant()
    """s(staleness)."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        state = super().start(model, situation)
        return state | ({"mean_square": torch.zeros_like(model)} if self.adaptive else {})

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        now = tensor_of(state, "model")
        total = torch.zeros_like(now)
        for received in buffer:
            g = received.upload.vectors["delta"]
            curvature = self.compensation * g * g
            if self.adaptive:  # lambda_0 / sqrt(mean square + epsilon)
                square = self.decay * state["mean_square"] + (1 - self.decay) * g * g
                state["mean_square"] = square
                curvature = curvature / torch.sqrt(square + EPSILON)
            if received.member.staleness > 0:  # now is rounded as the start was, if to short floats
                start = received.start
                g = g + curvature * (now.to(start.dtype).to(now.dtype) - start)
            total += received.member.weight * g
        state["model"] = now - self.lr * total / sum(received.member.mass for received in buffer)
        return {}
