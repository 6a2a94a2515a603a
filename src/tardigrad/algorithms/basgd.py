"""BASGD: "BASGD: Buffered Asynchronous SGD for Byzantine Learning" (Yang, Li)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics
from tardigrad.core.robust import Median, RobustMean
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Received
from tardigrad.errors import ConfigError


def bucket_of(state: State, client: int | str, buckets: int) -> int:
    """Return the bucket of a client. Clients are dealt to the buckets in turn, in the order in which they
    first come: `state["clients"]` has a digest of each name in this order.

    >>> state: State = {"clients": torch.zeros(0, dtype=torch.int64)}
    >>> [bucket_of(state, client, 2) for client in ("ann", "bob", "eve", "bob")]
    [0, 1, 0, 1]
    """
    digest = int.from_bytes(blake2b(str(client).encode(), digest_size=8).digest(), signed=True)
    clients = tensor_of(state, "clients")
    if not (clients == digest).any():
        clients = state["clients"] = torch.cat([clients, clients.new_tensor([digest])])
    return int((clients == digest).nonzero()[0]) % buckets


def check_that_buckets_fill(buckets: int, situation: Situation, each: str) -> None:
    """Raise a ConfigError if the run ends before every bucket has one upload or buffer, as `each` says."""
    if situation.steps is not None and situation.steps < buckets:
        raise ConfigError(
            f"algorithm.buckets: the model moves when {buckets} buckets have one {each} each, but the run "
            f"makes {situation.steps} versions at most: it would never move; take fewer buckets or more trips"
        )


class BASGD(Individual):
    """Clients are dealt to buckets in turn, and each bucket keeps the mean of what its clients have sent.
    When no bucket is empty, the model moves by a robust mean of these means, and the buckets are emptied.

    A malicious client spoils one bucket and no more, however often it comes. The median withstands malicious
    clients in fewer than half of the buckets; so there must be more than twice as many buckets as malicious
    clients, if they may be in buckets of their own. With `buffer.weights = "examples"`, uploads weigh by
    their examples within their bucket; every bucket has one vote, because a client says itself how many it
    has.

    Every upload makes a version; between, its model is the one before.
    """

    kind: Literal["basgd"] = "basgd"
    single_upload: ClassVar[bool] = True
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.1, "high": 10.0, "log": True},
    }
    lr: PositiveFloat = 1.0
    """The server's learning rate (eta)."""
    buckets: int = Field(default=10, ge=2, le=10_000)
    """B, at most the number of clients."""
    mean: RobustMean = Median()
    """median or trimmed_mean (with fraction)."""

    def check_population(self, population: int) -> None:
        if population < self.buckets:
            raise ConfigError(
                f"algorithm.buckets: {population} clients cannot fill {self.buckets} buckets, and a step "
                f"waits until none is empty; take at most {population}"
            )

    def start(self, model: Tensor, situation: Situation) -> State:
        check_that_buckets_fill(self.buckets, situation, "upload")
        return super().start(model, situation) | {
            "buckets": model.new_zeros(self.buckets, *model.shape),
            "counts": torch.zeros(self.buckets, dtype=torch.float64),
            "clients": torch.zeros(0, dtype=torch.int64),
        }

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        (received,) = buffer
        means, masses = tensor_of(state, "buckets"), tensor_of(state, "counts")
        delta = received.upload.vectors["delta"]
        if torch.isfinite(delta).all():
            bucket = bucket_of(state, received.client, self.buckets)
            mass = received.member.mass
            masses[bucket] += mass
            means[bucket] += (delta - means[bucket]) * mass / float(masses[bucket])  # the mean of what came
        full = bool((masses > 0).all())
        if full:
            r = self.mean([*means], [1.0] * self.buckets)
            state["model"] = state["model"] - self.lr * r
            state["buckets"], state["counts"] = torch.zeros_like(means), torch.zeros_like(masses)
        return {"moved": float(full)}
