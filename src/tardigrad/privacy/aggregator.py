"""Central privacy: clip, weigh, sum, add noise to the sum, divide by a fixed number. In this order.

The algorithm is given a noisy sum in place of the sum, and does not know. Whatever it makes of it (momentum,
Adam, the model) is post-processing, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator, below
from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.bookkeeping import Delivery
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.precision import is_short
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload, Vectors, WeightedSum
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.grid import add_noise
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.momentum_payload import nearest_row, noisy_row
from tardigrad.privacy.noise import NoiseState, Normal

Normals = Callable[[int], Normal]
"""Where the normal numbers of a step (or, for local privacy, of a trip) come from."""

BUDGET = "privacy budget"
NEGLIGIBLE = 1e-6
"""Uploads of a smaller weight do not show in the row of versions."""


@dataclass(frozen=True, slots=True)
class PrivateVersions(WeightedSum):
    """A sum whose versions are known only through noise."""

    row: tuple[float, ...] = ()

    def by_version(self, window: int) -> list[float]:
        return [0.0] * (window + 1 - len(self.row)) + list(self.row)


class PrivateAggregator(Aggregator):
    """The aggregator of a run with central privacy.

    The sums of a model in short floats are float64 until they have their noise: in float32, rounding could
    carry what one client changes in a sum of many uploads above the clip.
    """

    sums_of_short_floats: ClassVar[torch.dtype] = torch.float64

    def __init__(
        self,
        algorithm: SumOnly,
        model: Tensor,
        situation: Situation,
        guarantee: Guarantee,
        normals: Normals,
        model_average: float | None = None,
    ) -> None:
        super().__init__(algorithm, model, situation, model_average)
        self.guarantee = guarantee
        self._normals = normals
        self._bound = situation.staleness_bound or 0
        self._of_fixed_size = situation.buffer is not None
        self._opening = float(situation.population) if algorithm.opening else None
        momentum = getattr(algorithm, "momentum", None)
        if (
            isinstance(momentum, Approximation | LightApproximation)
            and self._who_joined_is_private
            and not guarantee.version_gamma
        ):
            raise ConfigError(
                "privacy.versions: momentum approximation uses how many uploads a step has, which is private "
                "where all who joined make a step; set it to 'private'"
            )
        self.state["clip"] = guarantee.clip
        extras = (1 if guarantee.adaptive else 0) + (self._bound + 1 if guarantee.version_gamma else 0)
        self._extras = torch.zeros(extras)
        """What an upload tells besides its vectors, summed: whether it was within the clip, its version."""
        self._shapes = {name: vector.shape for name, vector in self.empty_upload().items()}
        self._noise: NoiseState = {}
        if guarantee.noise_multiplier > 0:
            dimension = sum(shape.numel() for shape in self._shapes.values()) + extras
            limits = guarantee.limits
            k, b = (limits.participations, limits.separation) if limits else (guarantee.steps, 1)
            self._noise = guarantee.noise.start(dimension, guarantee.steps, k, b)

    @property
    def objection(self) -> str | None:
        return BUDGET if self.version >= self.guarantee.allowed else None

    def add(self, delivery: Delivery, upload: Upload, start: Tensor) -> None:
        if not 0 <= delivery.weight <= 1:
            raise RunError(
                f"privacy: trip {delivery.trip} weighs {delivery.weight:g}, but noise hides weights up to 1; "
                "a staleness law must give at most 1, and clients must weigh the same"
            )
        vectors, within = clipped(upload.vectors, self.state["clip"])
        super().add(delivery, replace(upload, vectors=vectors), start)
        adaptive, gamma = self.guarantee.adaptive, self.guarantee.version_gamma
        if adaptive is not None:
            self._extras[0] += adaptive.gamma * (within - 0.5)
        if gamma:
            assert delivery.staleness is not None
            self._extras[-1 - self._bound + delivery.staleness] += gamma * delivery.weight

    @property
    def _who_joined_is_private(self) -> bool:
        """Even how many: where all who were sampled make a step."""
        return self.guarantee.limits is None and not self._of_fixed_size

    @property
    def _divisor(self) -> float:
        """Fixed beforehand: K; for an opening, in which all clients take part, their number."""
        return self._opening if self._opening and self.version == 0 else self.guarantee.divisor

    def _released(self) -> Vectors:
        """The sums with their noise, also where nobody joined: all that leaves the mechanism."""
        guarantee = self.guarantee
        device = self.state["model"].device
        sums = {n: self._sums.get(n, torch.zeros(shape, device=device)) for n, shape in self._shapes.items()}
        if guarantee.noise_multiplier > 0:
            noise = guarantee.noise.draw(self._noise, self._normals(self.version))
            unit = guarantee.noise_multiplier * guarantee.overhead * guarantee.emulated
            parts = noise.split([*(shape.numel() for shape in self._shapes.values()), len(self._extras)])
            precise = partial(add_noise, precision=self.sums_of_short_floats)
            add = precise if is_short(self._dtype) else add_noise
            for total, part in zip(sums.values(), parts):
                add(total, part.view(total.shape), unit * self.state["clip"])
            add_noise(self._extras, parts[-1], unit)
        if is_short(self._dtype):
            sums = {name: total.float() for name, total in sums.items()}
        return sums

    def _move(self) -> Metrics:
        """The algorithm's own step, on the noisy sums."""
        guarantee, clip = self.guarantee, self.state["clip"]
        members = () if self._who_joined_is_private else tuple(self._members)
        sums = self._released()
        buffer = WeightedSum(sums, members, self.version, self._divisor)
        if guarantee.version_gamma:
            buffer = PrivateVersions(sums, (), self.version, self._divisor, self._row())
        assert isinstance(self.algorithm, SumOnly)
        metrics = dict(self.algorithm.step(self.state, buffer) or {})
        if guarantee.adaptive is not None:
            share = float(self._extras[0]) / (guarantee.adaptive.gamma * self._divisor) + 0.5
            self.state["clip"] = guarantee.adaptive.next(clip, share)
            metrics["clip"] = clip
        self._extras = torch.zeros_like(self._extras)
        if guarantee.noise_multiplier > 0:
            metrics["epsilon"] = guarantee.spent(self.version + 1)
        return metrics

    def _row(self) -> tuple[float, ...]:
        """The noisy weights by version, brought to the nearest that can be."""
        guarantee = self.guarantee
        versions = self._extras[-1 - self._bound :]
        row = noisy_row(versions, guarantee.version_gamma, self._divisor, self.version)
        law = self.algorithm.law
        weights = torch.tensor([law(s) for s in range(self._bound, -1, -1)], dtype=torch.float64)
        row[weights < NEGLIGIBLE] = 0
        possible = weights >= NEGLIGIBLE
        possible[: max(0, len(row) - 1 - self.version)] = False  # versions before 0
        all_show = bool((weights >= NEGLIGIBLE).all())
        total = 1.0 if self._of_fixed_size and guarantee.limits is not None and all_show else None
        row[possible] = nearest_row(row[possible], weights[possible], total)
        return tuple(row.tolist())

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, rest = super().snapshot()
        noise = {name: value for name, value in self._noise.items() if isinstance(value, Tensor)}
        tensors |= {f"noise/{name}": value for name, value in noise.items()} | {"extras": self._extras}
        numbers = {name: value for name, value in self._noise.items() if name not in noise}
        return tensors, rest | {"noise": numbers}

    def restore(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        super().restore(tensors, rest)
        self._noise = dict(rest["noise"]) | below("noise/", tensors)
        self._extras = tensors["extras"]
