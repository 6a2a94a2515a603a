"""CA2FL: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration" (Wang et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule, SumOnly
from tardigrad.core.precision import at_least_float32
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.situation import Situation
from tardigrad.core.state import State
from tardigrad.core.upload import Task, Vectors, WeightedSum


class CachingRule(Rule):
    """SGD. The client uploads the difference of its delta to h_i, its last accepted delta, and remembers
    delta."""

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        super().__init__(task, memory, lr)
        wide = at_least_float32(self.start)
        self.cached = memory["delta"] if memory else torch.zeros_like(wide)  # h_i

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        delta = at_least_float32(self.start) - at_least_float32(end)
        self.memory = {"delta": delta}
        return {"difference": delta - self.cached}


class CA2FL(SumOnly):
    """The last delta of every client counts in every step, corrected by the deltas that arrive.

    The paper keeps h_i of all clients on the server. The server only ever uses the differences
    delta_i - h_i and the mean h of all h_i. So each client keeps its own h_i: the numbers are the same, no
    table grows with the population, and the sum over the buffer is enough.
    """

    kind: Literal["ca2fl"] = "ca2fl"
    remembers: ClassVar[bool] = True
    undiscounted: ClassVar[frozenset[str]] = frozenset({"difference"})
    lr: PositiveFloat = 1.0
    """The server's learning rate (eta)."""

    @property
    def averages_memories(self) -> bool:
        return True

    @property
    def changes_training(self) -> bool:
        return False  # a client's memory follows from where it started and where it came to

    def start(self, model: Tensor, situation: Situation) -> State:
        state = super().start(model, situation)
        return state | {"cache": torch.zeros_like(model), "mass": situation.mass}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return CachingRule(task, memory, lr)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        v = state["cache"] + buffer.mean("difference")  # h + (1/M) sum of delta_i - h_i
        state["model"] = state["model"] - self.lr * v
        change = buffer.change_of_mean("difference", float(state["mass"]))  # (1/N) sum
        state["cache"] = state["cache"] + change  # the mean of all h_i again
        return {}
