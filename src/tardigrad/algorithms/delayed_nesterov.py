"""Delayed Nesterov: "Asynchronous Local-SGD Training for Language Modeling" (Liu et al.), Algorithm 3."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum


class DelayedNesterov(SumOnly):
    """Every step follows its uploads at once, and the momentum changes only at every N-th step.

    Nesterov's momentum on every single stale upload would amplify it many times. Here N steps together move
    the model as one step of Nesterov's method along the mean of their uploads does: with r the mean of a
    buffer (a single upload in the paper), m the momentum and D the sum of r since the last N-th step,

        D = D + r
        between:          x = x - lr (c beta m + r / N)
        every N-th step:  m = beta m + D / N;  x = x - lr ((1 - c N + c) beta m + r / N);  D = 0

    >>> DelayedNesterov(period=5)
    DelayedNesterov(kind='delayed_nesterov', lr=0.1, beta=0.9, period=5, c=0.0, staleness=Constant(kind='constant'))
    """  # noqa: E501

    kind: Literal["delayed_nesterov"] = "delayed_nesterov"
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.beta": {"low": 0.0, "high": 0.95},
    }
    lr: PositiveFloat = 0.1
    """The server's learning rate of N steps together (the paper's epsilon). The momentum is a sum, so that a
    step along uploads that agree is about lr / (1 - beta) times as long."""
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in the momentum."""
    period: int = Field(default=10, ge=1, le=10**9)
    """N: the momentum changes at every N-th step."""
    c: NonNegativeFloat = 0.0
    """How much of the momentum each step between takes, from 0 (none of it) to 1 / N (all take the same)."""
    staleness: StalenessLaw = Constant()
    """s(staleness)."""

    @model_validator(mode="after")
    def _at_most_a_share(self) -> Self:
        if self.c * self.period > 1 + 1e-9:
            raise ValueError(
                f"c must be at most 1 / period ({1 / self.period:g}), so that no step goes against the "
                f"momentum; {self.c:g} was given"
            )
        return self

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        zeros = {name: model.new_zeros(model.shape) for name in ("momentum", "accumulated")}
        return super().start(model, situation) | zeros | {"since": 0}

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        n, r = self.period, buffer.mean()
        state["accumulated"] = state["accumulated"] + r  # D
        state["since"] += 1
        share = self.c
        if state["since"] == n:
            state["momentum"] = self.beta * state["momentum"] + state["accumulated"] / n
            share = 1 - self.c * n + self.c
            state["accumulated"] = r.new_zeros(r.shape)
            state["since"] = 0
        state["model"] = state["model"] - self.lr * (share * self.beta * state["momentum"] + r / n)
        return {}
