"""FedBuff with a robust mean of several buffers, for clients that may be malicious and whose uploads are
masked."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.algorithms.basgd import check_that_buckets_fill
from tardigrad.core.robust import Median, RobustMean
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum


class BucketedFedBuff(SumOnly):
    """The mean of a buffer is one bucket. After B buffers, the model moves by a robust mean of their means.

    A malicious upload spoils the bucket that it is in and no other. The median withstands fewer than half
    spoilt buckets; so buffers must be small enough for most of them to have no malicious client. The server
    needs no upload by itself, so that uploads can be masked.

    Every buffer makes a version; between, its model is the one before.
    """

    kind: Literal["bucketed_fedbuff"] = "bucketed_fedbuff"
    default_buffer: ClassVar[int] = 3
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.1, "high": 10.0, "log": True},
    }
    lr: PositiveFloat = 1.0
    """The server's learning rate."""
    buckets: int = Field(default=5, ge=2, le=10_000)
    """B, how many buffers make a step."""
    mean: RobustMean = Median()
    """median or trimmed_mean (with fraction)."""
    staleness: StalenessLaw = Constant()
    """s(staleness). Staleness counts versions, most of which leave the model as it is."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        check_that_buckets_fill(self.buckets, situation, "buffer")
        return super().start(model, situation) | {
            "buckets": model.new_zeros(self.buckets, *model.shape),
            "filled": 0,
        }

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        buckets, filled = tensor_of(state, "buckets"), int(state["filled"])
        r = buffer.mean()
        if torch.isfinite(r).all():  # a bucket that is not finite does not count
            buckets[filled] = r  # in place, because it is never broadcast
            filled += 1
        full = filled == self.buckets
        if full:
            robust = self.mean([*buckets], [1.0] * self.buckets)
            state["model"] = state["model"] - self.lr * robust
        state["filled"] = 0 if full else filled
        return {"moved": float(full)}
