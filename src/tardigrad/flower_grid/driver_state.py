"""The contents of a snapshot of a run on a Flower grid."""

from __future__ import annotations

from typing import TypedDict

from tardigrad.algorithms.aggregator import AggregatorState
from tardigrad.core.bookkeeping import BookState


class DriverState(TypedDict):
    """The contents of a snapshot of a `Driver`, besides the tensors."""

    aggregator: AggregatorState
    book: BookState
    time: float
    trips: int
    given_up: int
    bytes: int
    refused: dict[str, int]
    metrics: dict[str, float]
    evaluated: int
    losses: list[float]
    statistics: float
    last_accepted: dict[str, int]
