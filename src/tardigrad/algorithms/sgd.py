"""Plain SGD on all data in one place: a reference for federated runs."""

from __future__ import annotations

from typing import ClassVar, Literal

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError


class SGD(SumOnly):
    """Single-thread SGD ("Asynchronous Federated Optimization", Algorithm 3): one client has all data.

    Needs `data.partition = {kind = "central"}`; a trip has as many minibatches as `local` sets.
    """

    kind: Literal["sgd"] = "sgd"
    single_upload: ClassVar[bool] = True
    default_buffer: ClassVar[int] = 1

    def check_population(self, population: int) -> None:
        if population != 1:
            raise ConfigError(
                f"algorithm.kind 'sgd' trains on all data in one place, but there are {population} clients; "
                "set data.partition = {kind = 'central'} and pace = {kind = 'asynchronous', concurrency = 1}"
            )

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        state["model"] = state["model"] - buffer.mean()
        return {}
