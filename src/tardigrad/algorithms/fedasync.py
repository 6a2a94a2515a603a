"""FedAsync: "Asynchronous Federated Optimization" (Xie, Koyejo, Gupta), Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics, Rule
from tardigrad.algorithms.fedprox import PULL_IN_GRADIENT, ProximalRule
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.staleness import Polynomial, StalenessLaw
from tardigrad.core.state import State
from tardigrad.core.upload import Received, Task, Vectors


class FedAsyncRule(ProximalRule):
    """Option I (rho = 0) or II (rho > 0: stay near the start). The client uploads its model."""

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        return super().direction(gradient, x) if self.mu else gradient

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        return {"model": end.clone()}


class FedAsync(Individual):
    """Every upload moves the model at once: x = (1 - a) x + a x_new, a = alpha s(staleness)."""

    kind: Literal["fedasync"] = "fedasync"
    single_upload: ClassVar[bool] = True
    default_buffer: ClassVar[int] = 1
    alpha: float = Field(default=0.6, gt=0, le=1)
    """The mixing weight of a fresh upload."""
    alpha_schedule: Literal["constant", "inverse_sqrt"] = "constant"
    """constant, or alpha / sqrt(t) at the t-th step."""
    staleness: StalenessLaw = Polynomial(a=0.5)
    """s(staleness)."""
    rho: float = Field(default=0.0, ge=0, le=1e30)
    """Strength of the pull back to the start on the client: 0 is the paper's option I, more is option II."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    @property
    def assumes_sgd(self) -> str | None:
        return PULL_IN_GRADIENT if self.rho else None

    @property
    def changes_training(self) -> bool:
        return bool(self.rho)

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return FedAsyncRule(task, memory, lr, self.rho)

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        (received,) = buffer
        alpha_t = self.alpha
        if self.alpha_schedule == "inverse_sqrt":
            alpha_t /= math.sqrt(version + 1)
        a = min(alpha_t * self.staleness(received.member.staleness), 1.0)  # alpha_t = alpha s(t - tau)
        state["model"] = (1 - a) * state["model"] + a * received.upload.vectors["model"]
        return {"alpha": a}
