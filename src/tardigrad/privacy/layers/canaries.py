"""Canaries: clients whose uploads are known to the auditor, to measure how much a run reveals.

Each canary is included or excluded by a fair coin. An included canary always uploads a random direction of
its own, many times longer than the clip, so that the run's own clipping is what limits it. The whole payload
of an excluded canary is zeros (also its clipping bit and its version), as in zero-out adjacency. The auditor
knows everything except the coins and the noise: the directions, the other clients' uploads and who took part
when. It subtracts the other clients' contributions from every released sum; noise and canaries remain, and
`canary_scores` looks for the canaries.

After the guesses the coins are revealed. Then only noise remains of every sum, and `mechanism_checks` tests
whether it is as large and as fresh as the accounting says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Upload, Vectors, WeightedSum
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.canary_scores import (
    Matrix,
    Observations,
    canary_scores,
    noise_covariance,
    promised_limits,
)
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.clip import WITHIN, ClipLayer
from tardigrad.privacy.layers.private_versions import VERSIONS

MOST_SIGNS = 4_000_000_000
"""The most bytes for the directions of all canaries: one byte for each parameter of each canary."""
CHUNK = 64
"""The number of directions that are converted to float32 at a time."""
TOO_LONG = 100.0
"""The length of an included canary's upload, in clips. A run that does not clip reveals the canary."""
SAMPLE = 256
"""The number of coordinates of each released vector whose noise is checked."""


@dataclass(frozen=True)
class Canaries:
    """The clients that are canaries, and whether each of them is included."""

    included: dict[int, bool]
    seed: int

    @staticmethod
    def drawn(population: int, count: int, seed: int) -> Canaries:
        """Draw `count` clients at random; a fair coin decides whether each is included."""
        generator = torch.Generator().manual_seed(seed)
        clients = torch.randperm(population, generator=generator)[:count].tolist()
        coins = torch.rand(len(clients), generator=generator) < 0.5
        return Canaries(dict(zip(clients, coins.tolist())), seed)

    def directions(self, size: int) -> Tensor:
        """Return a row of signs for each canary; divided by the root of `size` it has length 1."""
        if size * len(self.included) > MOST_SIGNS:
            raise ConfigError(
                f"canaries: the directions of {len(self.included):,} canaries with {size:,} parameters do "
                f"not fit into memory; give at most {MOST_SIGNS // size:,}"
            )
        generator = torch.Generator().manual_seed(self.seed ^ 1)
        shape = (len(self.included), size)
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)


class Auditor:
    """Plays the canaries of a run and observes everything that it releases.

    It has two layers: `canaries`, below all others, replaces the trained uploads of canaries; `watch`, above
    all others, passes what is released to the auditor.
    """

    def __init__(self, canaries: Canaries, guarantee: Guarantee, clip: ClipLayer) -> None:
        self.drawn, self.guarantee = canaries, guarantee
        self.record = Observations()
        self.canaries, self.watch = CanaryLayer(self), WatchLayer(self)
        self._mechanism = clip
        self._clip = guarantee.clip  # as promised, computed without asking the mechanism
        self._rows = {client: row for row, client in enumerate(canaries.included)}
        self._took_part: dict[int | str, list[int]] = {}

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        """Draw the canaries' directions for the shapes that clients upload."""
        self._shapes, self._bound = surroundings.shapes, surroundings.situation.staleness_bound or 0
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        size = sum(self._sizes)
        self._signs, self._length = self.drawn.directions(size), math.sqrt(size)
        self._samples = _samples(self._sizes, self.drawn.seed)
        self._extras = extras
        self._empty_buffer()

    def _empty_buffer(self) -> None:
        self._weights = np.zeros(len(self._rows))
        self._others = torch.zeros(sum(self._sizes), dtype=torch.float64)
        self._all = torch.zeros(sum(self._sizes))
        self._in = torch.zeros(sum(self._sizes))
        self._known = {name: torch.zeros(size, dtype=torch.float64) for name, size in self._extras.items()}

    def upload_of(self, delivery: Accepted, upload: Upload, device: torch.device) -> Upload:
        """Return the upload of this delivery's client, and record what the auditor knows of it."""
        sent = self.sent_by(delivery.client, device)
        short, within = clipped(upload.vectors, self._clip) if sent is None else ({}, False)
        self.know(delivery, short, within)
        return upload if sent is None else replace(upload, vectors=sent)

    def sent_by(self, client: int | str, device: torch.device) -> Vectors | None:
        """Return what a canary uploads; None for other clients."""
        row = self._rows.get(client) if isinstance(client, int) else None
        if row is None:
            return None
        included = self.drawn.included[int(client)]
        sent = self._signs[row].float() / self._length * (TOO_LONG * self._clip if included else 0.0)
        parts = sent.to(device).split(self._sizes)
        return {name: p.view(shape) for (name, shape), p in zip(self._shapes.items(), parts)}

    def know(self, delivery: Accepted, vectors: Vectors, within: bool) -> None:
        """Record an upload that counts. `vectors`: what another client than a canary adds to the sum, before
        it is weighed. `within`: whether its upload was within the clip."""
        client = delivery.client
        self._count(client, delivery.version)
        row = self._rows.get(client) if isinstance(client, int) else None
        if row is None:
            flat = torch.cat([vector.reshape(-1) for vector in vectors.values()]).cpu()
            self._others.add_(flat.double(), alpha=delivery.weight)
            self._know_extras(delivery, within)
            return
        own = self._signs[row].float() / self._length
        self._weights[row] += delivery.weight
        self._all.add_(own, alpha=delivery.weight)
        if self.drawn.included[int(client)]:
            self._in.add_(own, alpha=delivery.weight)
            self._know_extras(delivery, within)

    def is_out(self, delivery: Accepted) -> bool:
        """Whether the client of this delivery is a canary whose whole payload is zeros."""
        return isinstance(delivery.client, int) and self.drawn.included.get(delivery.client) is False

    def _count(self, client: int | str, step: int) -> None:
        """Record whether the client took part too often or too early."""
        k, b = promised_limits(self.guarantee)
        steps = self._took_part.setdefault(client, [])
        steps.append(step)
        broken = self.record.broken
        if len(steps) > k:
            broken.setdefault(
                "participations", f"a client took part {len(steps)} times; at most {k} is promised"
            )
        elif len(steps) > 1 and (apart := steps[-1] - steps[-2]) < b:
            broken.setdefault(
                "separation", f"a client took part in steps {apart} apart; at least {b} is promised"
            )

    def _know_extras(self, delivery: Accepted, within: bool) -> None:
        """Record the other coordinates of a payload: whether it was within the clip, and its version."""
        adaptive, gamma = self.guarantee.adaptive, self.guarantee.version_gamma
        if adaptive is not None:
            self._known[WITHIN][0] += adaptive.gamma * (within - 0.5)
        if gamma:
            self._known[VERSIONS][delivery.staleness] += gamma * delivery.weight

    def see(self, released: Mapping[str, Tensor], extras: dict[str, Tensor]) -> None:
        """Record what the run has released in this step."""
        whole = torch.cat([total.reshape(-1) for total in released.values()]).double().cpu()
        rest = ((whole - self._others) / self._clip).float()
        seen = torch.stack([rest, self._all, self._in], dim=1)
        projections = torch.cat([signs.float() @ seen for signs in self._signs.split(CHUNK)])
        along, of_all, of_included = projections.double().numpy().T / self._length
        record = self.record
        record.weights.append(self._weights)
        record.along.append(along)
        record.of_all.append(of_all)
        record.of_included.append(of_included)
        for name, noise, sample in zip(self._shapes, (rest - self._in).split(self._sizes), self._samples):
            record.noise.setdefault(f"the sum of {name!r}", []).append(noise[sample].double().numpy())
        for name, title in ((WITHIN, "the share within the clip"), (VERSIONS, "the versions")):
            if name in extras:
                left = (extras[name].double() - self._known[name]).numpy()
                record.noise.setdefault(title, []).append(left)
        self._share = float(extras[WITHIN][0]) if WITHIN in extras else 0.0

    def follow(self, version: int, divisor: float) -> None:
        """Compute the clip from what was released, and compare it with the clip of the mechanism."""
        if (adaptive := self.guarantee.adaptive) is not None:
            self._clip = adaptive.next(self._clip, self._share / (adaptive.gamma * divisor) + 0.5)
        if not math.isclose(self._mechanism.clip, self._clip, rel_tol=1e-6):
            self.record.broken.setdefault(
                "clip",
                f"after step {version + 1} the clip is {self._mechanism.clip:.6g}; what was released "
                f"gives {self._clip:.6g}",
            )
            self._clip = self._mechanism.clip
        self._empty_buffer()

    def scores(self) -> tuple[list[float], list[bool]]:
        """Return, for each canary that may be visible, how much it seems to be included, and whether it
        is."""
        return canary_scores(self.record, list(self.drawn.included.values()), self.guarantee)

    def scores_of_models(self, first: Tensor, last: Tensor) -> tuple[list[float], list[bool]] | None:
        """Return the same for an observer who sees nothing but these two models; None if clients do not
        upload changes of the model."""
        if "delta" not in self._shapes:
            return None
        begin = sum(self._sizes[: list(self._shapes).index("delta")])
        change = (first - last).reshape(-1).float().cpu()
        columns = self._signs[:, begin : begin + len(change)]
        along = torch.cat([signs.float() @ change for signs in columns.split(CHUNK)]).double().numpy()
        present = np.array(self.record.weights).any(axis=0)
        seen, truth = along[present], np.array(list(self.drawn.included.values()))[present]
        return (seen - np.median(seen)).tolist(), truth.tolist()

    def covariance(self) -> Matrix:
        """Return the covariance of the noise between the observed steps, for a multiplier of 1."""
        return noise_covariance(self.guarantee, len(self.record.weights))


class CanaryLayer(UploadLayer):
    """Replaces the trained uploads of canaries. It lies below all other layers."""

    name: ClassVar[str] = "canaries"
    needs_vectors: ClassVar[bool] = True

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self.before: dict[str, Tensor] = {}
        """The extras of the buffer before the last upload."""

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self._auditor.begin(surroundings, extras)

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        self.before = {name: extra.clone() for name, extra in buffer.extras.items()}
        return self._auditor.upload_of(delivery, upload, start.device)


class WatchLayer(UploadLayer):
    """Passes what is released to the auditor. It lies above all other layers."""

    name: ClassVar[str] = "watch"

    def __init__(self, auditor: Auditor) -> None:
        self.auditor = auditor

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        if self.auditor.is_out(delivery):  # its payload is zeros
            buffer.extras |= self.auditor.canaries.before
        return upload

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        if not total.sums:
            raise RunError(
                f"audit: the batch of version {total.version + 1} was not released, because too few clients "
                "would hide each other; audit the run with a smaller secure.least_clients"
            )
        self.auditor.see(total.sums, buffer.extras)
        return total

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        self.auditor.follow(total.version, total.divisor)
        return {}


def _samples(sizes: list[int], seed: int) -> list[Tensor]:
    """Draw, for each vector, the coordinates whose noise is checked."""
    generator = torch.Generator().manual_seed(seed ^ 2)
    return [torch.randperm(size, generator=generator)[:SAMPLE] for size in sizes]
