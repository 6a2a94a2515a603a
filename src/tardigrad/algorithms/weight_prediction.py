"""Weight prediction: "Momentum Approximation in Asynchronous Private Federated Learning" (Yu et al.),
Algorithm 2 (appendix B.2)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule
from tardigrad.algorithms.fedbuff import FedBuff
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Task, Vectors, WeightedSum
from tardigrad.errors import ConfigError


class WeightPredictionRule(Rule):
    """SGD that starts from the prediction of the model at arrival; delta is relative to it."""

    def __init__(self, task: Task, memory: Vectors, lr: float, tau: float) -> None:
        super().__init__(task, memory, lr)
        self.start = self.start - tau * task.vectors["drift"]  # theta_hat = theta - tau eta x_h / H


class WeightPrediction(FedBuff):
    """FedBuff whose clients start from a prediction of the model at the arrival of their upload.

    Every step is expected to move the model by the drift eta x_h / H: x_h is a running average of the
    (staleness-weighted) means and H the newest preconditioner. The broadcast is twice as large.
    """

    kind: Literal["weight_prediction"] = "weight_prediction"  # type: ignore[assignment]
    decay: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in x_h (the paper's alpha)."""
    expected_staleness: NonNegativeFloat | None = None
    """How many steps ahead every client predicts. Default: the staleness that its upload will have,
    which only a simulation knows."""

    @property
    def oracle(self) -> bool:
        return self.expected_staleness is None

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | {"x_h": model.new_zeros(model.shape)}

    def broadcast(self, state: State) -> Vectors:
        drift = self.lr * self.preconditioner.divide(state, tensor_of(state, "x_h"))  # 0 at version 0
        return super().broadcast(state) | {"drift": drift}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        tau = task.staleness if self.expected_staleness is None else self.expected_staleness
        if tau is None:
            raise ConfigError(
                "algorithm.expected_staleness: no client knows its staleness beforehand outside a "
                "simulation; set it to the staleness that is usual here, such as concurrency / buffer size"
            )
        return WeightPredictionRule(task, memory, lr, tau)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        r = self.combined(buffer)  # x_t
        state["model"] = self.move(state, r, buffer)  # theta = theta - eta m / H
        state["x_h"] = self.decay * state["x_h"] + (1 - self.decay) * r
        return self.momentum.metrics(state)
