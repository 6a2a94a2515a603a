"""FedProx: "Federated Optimization in Heterogeneous Networks" (Li et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tardigrad.algorithms.algorithm import Rule
from tardigrad.algorithms.fedavg import FedAvg
from tardigrad.core.pace import Pace, Synchronous
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.upload import Task, Vectors

PULL_IN_GRADIENT = (
    "the pull back to the start is a part of the gradient, and an optimiser with a state of its own would "
    "delay or rescale it"
)


class ProximalRule(Rule):
    """SGD on f(x) + mu/2 |x - x_start|^2: the gradient plus mu (x - x_start)."""

    def __init__(self, task: Task, memory: Vectors, lr: float, mu: float) -> None:
        super().__init__(task, memory, lr)
        self.mu = mu

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient.add_(x - self.start, alpha=self.mu)


class FedProx(FedAvg):
    """FedAvg whose clients stay near the model that they started from; in rounds, or at any other pace."""

    kind: Literal["fedprox"] = "fedprox"  # type: ignore[assignment]
    synchronous: ClassVar[bool] = False
    mu: float = Field(default=0.01, ge=0, le=1e30)
    """Strength of the pull back to the start; the papers use 0.001 to 1."""

    staleness: StalenessLaw = Constant()
    """s(staleness), at a pace without rounds."""

    def default_pace(self, population: int) -> Pace:
        return Synchronous(cohort=min(10, population))

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    @property
    def assumes_sgd(self) -> str | None:
        return PULL_IN_GRADIENT if self.mu else None

    @property
    def changes_training(self) -> bool:
        return bool(self.mu)

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return ProximalRule(task, memory, lr, self.mu)
