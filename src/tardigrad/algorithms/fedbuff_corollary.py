"""FedBuff with the step sizes of its theory: "Federated Learning with Buffered Asynchronous Aggregation"
(Nguyen et al.), Corollary 1."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule, SumOnly
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.upload import Task, Vectors, WeightedSum
from tardigrad.errors import ConfigError


class FedBuffCorollary(SumOnly):
    """FedBuff with nothing to tune: the server's learning rate is K, and that of clients is
    1 / (K sqrt(T Q)), for K uploads a step, T steps and Q local steps. local.lr and local.schedule have no
    effect, and late uploads count in full, as in the theory.
    """

    kind: Literal["fedbuff_corollary"] = "fedbuff_corollary"
    uses_local_steps: ClassVar[bool] = True
    scale: PositiveFloat = 1.0
    """The constant of the clients' learning rate, which the corollary leaves open."""
    smoothness: PositiveFloat = 1.0
    """L, how fast gradients change: the corollary is for eta_g eta_l Q of at most 1 / L, which is refused if
    the run is too short for it."""

    @property
    def assumes_sgd(self) -> str | None:
        return "its step size is that of SGD's theory"

    def start(self, model: Tensor, situation: Situation) -> State:
        k, t = situation.buffer, situation.steps
        if k is None or t is None:
            raise ConfigError(
                "stop.steps: the step sizes of fedbuff_corollary follow from the length of the run and the "
                "number of uploads in a step; set stop.steps (or stop.trips), and buffer.size"
            )
        eta = self.scale / (k * math.sqrt(max(1, t) * situation.local_steps))
        product, most = k * eta * situation.local_steps, 1 / self.smoothness
        if product > most:
            raise ConfigError(
                f"algorithm.scale: scale sqrt(Q / T) is {product:.3g} with {situation.local_steps:g} local "
                f"steps (Q) in each of {t} steps (T), and the corollary is for at most {most:.3g} "
                "(1 / algorithm.smoothness); lower the scale, run more steps, or take fewer local steps"
            )
        return super().start(model, situation) | {"lr": float(k), "eta": eta}

    def broadcast(self, state: State) -> Vectors:
        vectors = super().broadcast(state)
        return vectors | {"eta": vectors["model"].new_tensor([float(state["eta"])])}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return Rule(task, memory, task.vectors["eta"].item())

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - state["lr"] * buffer.mean()
        return {}
