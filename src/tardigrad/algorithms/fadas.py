"""FADAS: "FADAS: Towards Federated Adaptive Asynchronous Optimization" (Wang et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.momentum import EMA
from tardigrad.core.preconditioner import AMSGrad
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.step import Step
from tardigrad.core.upload import WeightedSum


class FADAS(SumOnly):
    """AMSGrad on the buffer's mean delta, with smaller steps when the buffer has a very late upload."""

    kind: Literal["fadas"] = "fadas"
    default_buffer: ClassVar[int] = 5
    uses_member_count: ClassVar[bool] = True
    lr: PositiveFloat = 1e-3
    """The server's learning rate (eta)."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in m."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share of the past in v."""
    adaptivity: PositiveFloat = 1e-8
    """Added to the root of v (the paper's epsilon)."""
    stale_lr: Literal["divide", "cap", "keep"] = "divide"
    """The effect of the buffer's largest staleness on lr, once it is above `threshold`: divide lr by it, cap
    lr at 1 / staleness, or keep it (the variant without delay adaptation)."""
    threshold: NonNegativeInt = 1
    """The largest staleness that leaves lr as it is (tau_c)."""
    bias_correction: bool = True
    """Correct the bias of m and v, which start at 0, as Adam does."""

    def _step(self, lr: float) -> Step:
        # m = b1 m + (1 - b1) delta;  v = b2 v + (1 - b2) delta^2;  x = x - lr m / (sqrt(max v) + epsilon)
        preconditioner = AMSGrad(
            beta2=self.beta2, adaptivity=self.adaptivity, bias_correction=self.bias_correction
        )
        return Step(lr=lr, momentum=EMA(beta=self.beta1), preconditioner=preconditioner)

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | self._step(self.lr).begin(model, situation)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        lr = self._lr(max(member.staleness for member in buffer.members))
        correction = 1.0
        if self.bias_correction:  # of m; the preconditioner corrects v
            correction = 1 - self.beta1 ** (int(state["second_moment_steps"]) + 1)
        state["model"] = self._step(lr / correction).move(state, buffer.mean(), buffer)
        return {"lr": lr}

    def _lr(self, largest: int) -> float:
        """Return eta_t for the largest staleness in the buffer (tau_max)."""
        if self.stale_lr == "keep" or largest <= self.threshold:
            return self.lr
        return self.lr / largest if self.stale_lr == "divide" else min(self.lr, 1 / largest)
