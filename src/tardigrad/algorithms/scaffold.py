"""SCAFFOLD: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (Karimireddy et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule, SumOnly
from tardigrad.core.precision import at_least_float32
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Task, Vectors, WeightedSum

CONTROL_IS_MEAN_GRADIENT = (
    "a client's control variate is its delta divided by the sum of its learning rates, which is its mean "
    "gradient only if every local step is lr times a gradient"
)


class ControlledRule(Rule):
    """SGD along gradient - c_i + c: the estimated drift of the client is replaced by that of all clients.

    c is broadcast as `control`; the client remembers its own c_i and uploads how much it changed.
    """

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        super().__init__(task, memory, lr)
        c = at_least_float32(task.vectors["control"])
        self.control = memory["control"] if memory else torch.zeros_like(c)  # c_i
        self.correction = c - self.control

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient.add_(self.correction)  # y = y - eta_l (g - c_i + c)

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        delta = self.start - end
        control = self.control
        if lr_sum > 0:  # with learning rates of 0 the gradient cannot be estimated
            control = delta / lr_sum - self.correction  # c_i - c + (x - y) / (K eta_l)
        self.memory = {"control": control}
        return {"delta": delta, "control": control - self.control}


class SCAFFOLD(SumOnly):
    """FedAvg whose clients correct their drift by control variates.

    c_i is computed from the trip itself (option II), without further gradients.
    """

    kind: Literal["scaffold"] = "scaffold"
    synchronous: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    undiscounted: ClassVar[frozenset[str]] = frozenset({"control"})
    lr: PositiveFloat = 1.0
    """The server's learning rate (eta_g)."""

    @property
    def averages_memories(self) -> bool:
        return True

    @property
    def assumes_sgd(self) -> str | None:
        return CONTROL_IS_MEAN_GRADIENT

    def start(self, model: Tensor, situation: Situation) -> State:
        state = super().start(model, situation)
        return state | {"control": torch.zeros_like(model), "mass": situation.mass}

    def broadcast(self, state: State) -> Vectors:
        return {name: tensor_of(state, name) for name in ("model", "control")}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return ControlledRule(task, memory, lr)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - self.lr * buffer.mean()  # x = x + eta_g mean of (y - x)
        change = buffer.change_of_mean("control", float(state["mass"]))  # |S|/N mean of dc
        state["control"] = state["control"] + change  # the mean of all c_i again
        return {}
