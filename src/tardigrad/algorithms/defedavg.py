"""DeFedAvg-nIID: "Achieving Linear Speedup in Asynchronous Federated Learning with Heterogeneous Clients"
(Wang et al.)."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.momentum import State
from tardigrad.core.upload import WeightedSum


class DeFedAvg(SumOnly):
    """FedAvg that does not wait: the first n uploads make a step, however old the model they started from.

    What makes it fair to slow clients is the pace, `queued`: the newest model goes to uniformly drawn
    clients, and one that is still at work trains from it afterwards.
    """

    kind: Literal["defedavg"] = "defedavg"
    lr: PositiveFloat = 1.0
    """The server's learning rate (the paper's gamma)."""

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - self.lr * buffer.mean()
        return {}
