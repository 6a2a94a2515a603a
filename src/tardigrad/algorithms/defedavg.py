"""DeFedAvg-nIID: "Achieving Linear Speedup in Asynchronous Federated Learning with Heterogeneous Clients"
(Wang et al.)."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace, Queued, Scripted
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError


class DeFedAvg(SumOnly):
    """FedAvg that does not wait: the first n uploads make a step, however stale they are.

    The pace `queued` makes it fair to slow clients: the newest model is sent to uniformly drawn clients, and
    a client that is still training trains from it afterwards.
    """

    kind: Literal["defedavg"] = "defedavg"
    lr: PositiveFloat = 1.0
    """The server's learning rate (the paper's gamma)."""

    def default_pace(self, population: int) -> Pace:
        return Queued(concurrency=min(100, population))

    def check_pace(self, pace: Pace, buffer: Buffer) -> None:
        if not isinstance(pace, Queued | Scripted):
            raise ConfigError(
                "pace.kind: defedavg draws clients whether they are at work or not and needs the pace "
                f"'queued', not {pace.kind!r}; for other paces use algorithm.kind 'fedbuff' with "
                "staleness = 'constant'"
            )

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - self.lr * buffer.mean()
        return {}
