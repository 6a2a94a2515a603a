"""FedAvg: "Communication-Efficient Learning of Deep Networks from Decentralized Data" (McMahan et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum


class FedAvg(SumOnly):
    """Works in rounds: the model moves by the mean of the cohort's deltas.

    >>> FedAvg(lr=0.5)
    FedAvg(kind='fedavg', lr=0.5)
    """

    kind: Literal["fedavg"] = "fedavg"
    synchronous: ClassVar[bool] = True
    lr: PositiveFloat = 1.0
    """The server's learning rate; 1 replaces the model by the mean of the clients' models."""

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - self.lr * buffer.mean()
        return {}
