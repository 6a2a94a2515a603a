"""Ringmaster ASGD: "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity" (Maranjyan,
Tyurin, Richtarik), Algorithm 4; and Rennala SGD (Tyurin, Richtarik), its Algorithm 2."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError


class _Bounded(SumOnly):
    bound: ClassVar[int]
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.02, "high": 2.0, "log": True},
    }
    lr: PositiveFloat = 1.0
    """The server's learning rate (gamma)."""

    @property
    def default_staleness_bound(self) -> int | None:
        return self.bound

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - self.lr * buffer.mean()
        return {}


class Ringmaster(_Bounded):
    """Every upload moves the model, unless its staleness is R or more; then it is refused.

    R - 1 is buffer.staleness_bound. Late uploads that count, count in full.
    """

    kind: Literal["ringmaster"] = "ringmaster"
    bound: ClassVar[int] = 19
    default_buffer: ClassVar[int] = 1
    lr: PositiveFloat = 0.1
    """The server's learning rate (gamma); a single upload makes a step, so it is small."""


class Rennala(_Bounded):
    """Only fresh uploads count, and K of them make a step: minibatch SGD of the
    fastest clients.

    buffer.staleness_bound is 0.
    """

    kind: Literal["rennala"] = "rennala"
    bound: ClassVar[int] = 0

    def check_pace(self, pace: Pace, buffer: Buffer) -> None:
        super().check_pace(pace, buffer)
        if buffer.staleness_bound:
            raise ConfigError(
                f"buffer.staleness_bound: rennala uses fresh uploads alone, so it is 0, not "
                f"{buffer.staleness_bound}; leave it out, or use algorithm.kind 'ringmaster', which takes a "
                "bound and any buffer.size"
            )
