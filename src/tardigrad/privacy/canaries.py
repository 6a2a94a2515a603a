"""Canaries: clients whose uploads are known to the auditor, to measure what a run gives away.

Each canary is in or out by a fair coin. If it is in, it always uploads a random direction of its own, as long
as the clip allows; if it is out, zeros. The auditor knows all directions and who took part when, and sees
every released sum. For each canary the sums along its direction, s_t, are noise with a known covariance
between steps, plus its weights a_t if it is in. The best linear test is a' covariance^-1 s: its scores are
turned into guesses and a lower bound on epsilon by `audit`. A bound above what the accountant says means
that something is broken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tardigrad.core.bookkeeping import Delivery
from tardigrad.core.upload import Upload, Vectors
from tardigrad.errors import ConfigError
from tardigrad.privacy.aggregator import PrivateAggregator
from tardigrad.privacy.audit import audit_scores
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.noise import Noise

MOST_SIGNS = 4_000_000_000
"""A canary's direction takes a byte a parameter."""
CHUNK = 64


@dataclass(frozen=True)
class Canaries:
    """Which clients are canaries, and which of them are in."""

    included: dict[int, bool]
    seed: int

    @staticmethod
    def drawn(population: int, count: int, seed: int) -> Canaries:
        """`count` clients at random, each in or out by a fair coin."""
        generator = torch.Generator().manual_seed(seed)
        clients = torch.randperm(population, generator=generator)[:count].tolist()
        coins = torch.rand(len(clients), generator=generator) < 0.5
        return Canaries(dict(zip(clients, coins.tolist())), seed)

    def directions(self, size: int) -> Tensor:
        """A row of signs for each canary; over the root of `size` it has length 1."""
        if size * len(self.included) > MOST_SIGNS:
            raise ConfigError(
                f"canaries: the directions of {len(self.included):,} canaries with {size:,} parameters do "
                f"not fit into memory; give at most {MOST_SIGNS // size:,}"
            )
        generator = torch.Generator().manual_seed(self.seed ^ 1)
        shape = (len(self.included), size)
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)


class AuditedAggregator(PrivateAggregator):
    """A private aggregator some of whose clients are canaries."""

    def __init__(self, *arguments: Any, canaries: Canaries, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.canaries = canaries
        self._rows = {client: row for row, client in enumerate(canaries.included)}
        size = sum(shape.numel() for shape in self._shapes.values())
        self._signs, self._length = canaries.directions(size), math.sqrt(size)
        self._weights = np.zeros(len(self._rows))  # of the canaries in the buffer
        self._seen: list[NDArray[np.float64]] = []
        self._took_part: list[NDArray[np.float64]] = []

    def add(self, delivery: Delivery, upload: Upload, start: Tensor) -> None:
        row = self._rows.get(delivery.client) if isinstance(delivery.client, int) else None
        if row is not None:
            assert isinstance(delivery.client, int)
            length = self.state["clip"] if self.canaries.included[delivery.client] else 0.0
            own = (self._signs[row].float() * (length / self._length)).to(start.device)
            parts = own.split([shape.numel() for shape in self._shapes.values()])
            vectors = {name: p.view(shape) for (name, shape), p in zip(self._shapes.items(), parts)}
            upload = replace(upload, vectors=vectors)
            self._weights[row] = delivery.weight
        super().add(delivery, upload, start)

    def _released(self) -> Vectors:
        sums = super()._released()
        whole = torch.cat([total.reshape(-1) for total in sums.values()]).float().cpu()
        along = torch.cat([signs.float() @ whole for signs in self._signs.split(CHUNK)])
        self._seen.append(along.double().numpy() / (self._length * self.state["clip"]))
        self._took_part.append(self._weights)
        self._weights = np.zeros_like(self._weights)
        return sums

    def lower_bound(self, confidence: float) -> tuple[float, int]:
        """Epsilon is at least this, with that confidence; and how many canaries took part."""
        seen, weights = np.array(self._seen).T, np.array(self._took_part).T  # canaries x steps
        present = weights.any(axis=1)
        if present.sum() < 2:
            raise ConfigError(
                f"canaries: only {present.sum()} of them took part; give more of them, or more steps"
            )
        covariance = _covariance(self.guarantee, weights.shape[1])
        scores = np.einsum("cs,cs->c", weights, np.linalg.solve(covariance, seen.T).T)
        included = np.array(list(self.canaries.included.values()))
        bound = audit_scores(
            scores[present].tolist(), included[present].tolist(), self.guarantee.delta, confidence
        )
        return bound, int(present.sum())


def _covariance(guarantee: Guarantee, steps: int) -> NDArray[np.float64]:
    """Of the noise in the first steps, for a multiplier of 1."""
    limits = guarantee.limits
    k, b = (limits.participations, limits.separation) if limits else (guarantee.steps, 1)
    mixing = mixing_matrix(guarantee.noise, steps, guarantee.steps, k, b)
    return mixing @ mixing.T


def mixing_matrix(noise: Noise, steps: int, planned: int, k: int, b: int) -> NDArray[np.float64]:
    """Which normal vectors the noise of each step is made of: found by giving it unit vectors."""
    drawn = 0

    def unit(dimension: int) -> Tensor:
        nonlocal drawn
        vector = torch.zeros(dimension)
        vector[drawn] = 1.0
        drawn += 1
        return vector

    state = noise.start(2 * steps + 1, planned, k, b)  # a tree has fewer nodes than twice its leaves
    return np.array([noise.draw(state, unit).double().numpy() for _ in range(steps)])
