"""AREA: "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays"
(Iakovidou, Kim)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule, SumOnly
from tardigrad.core.precision import at_least_float32
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Task, Vectors, WeightedSum


class ResidualRule(Rule):
    """SGD. The client uploads how its model differs from y_i, the end of its last accepted trip, and
    remembers the new one. Before its first trip, y_i is the model of version 0."""

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        super().__init__(task, memory, lr)
        self.last = memory["end"] if memory else at_least_float32(task.vectors["origin"])  # y_i

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        new = at_least_float32(end)
        self.memory = {"end": new.clone()}
        return {"difference": self.last - new}


class AREA(SumOnly):
    """The model is the mean of the last local models of *all* clients, so that fast clients count no more
    than slow ones, however late an upload is.

    An upload has the difference of a client's last two local models, y_i - new y_i, and a buffer moves the
    model by the sum of the differences over the number N of all clients. There is no rate on the server.
    Clients download the model of version 0 too, from which their first difference is taken.
    """

    kind: Literal["area"] = "area"
    remembers: ClassVar[bool] = True
    undiscounted: ClassVar[frozenset[str]] = frozenset({"difference"})

    @property
    def averages_memories(self) -> bool:
        return True

    @property
    def changes_training(self) -> bool:
        return False  # a client's memory follows from where it came to

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | {"origin": model.clone(), "mass": situation.mass}

    def broadcast(self, state: State) -> Vectors:
        return super().broadcast(state) | {"origin": tensor_of(state, "origin")}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        return ResidualRule(task, memory, lr)

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        # (1/N) sum of y_i - new y_i
        state["model"] = state["model"] - buffer.change_of_mean("difference", float(state["mass"]))
        return {}
