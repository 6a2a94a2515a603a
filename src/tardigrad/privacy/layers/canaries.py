"""Canaries: clients whose uploads are known to the auditor, to measure what a run gives away.

Each canary is in or out by a fair coin. If it is in, it always uploads a random direction of its own, many
times longer than the clip, so that the run's own clipping is what limits it; if it is out, its whole payload
is zeros (what it tells about the clip and its version too), as zero-out adjacency has it. The auditor knows
everything except the coins and the noise: the directions, the other clients' uploads and who took part when.
So from every released sum it subtracts the other clients' contributions, and noise and canaries are left.

For each canary the rest along its direction, s_t, is noise with a known covariance between steps, plus its
weights a_t if it is in, plus a little of the other canaries, whose directions are nearly orthogonal and half
of whom are in. The best linear test is a' covariance^-1 (s - h), where h is half of what all canaries
together give along this direction (with contributions as long as they seem to be: the clip may be broken).
`audit` turns these scores into guesses and a lower bound on epsilon.

After the guesses the coins are revealed. Then the noise itself is left of every sum, and `mechanism_checks`
looks whether it is as large and as fresh as the accounting says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Upload, WeightedSum
from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import BySampling
from tardigrad.privacy.clipping import clipped
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.clip import WITHIN, ClipLayer
from tardigrad.privacy.layers.private_versions import VERSIONS
from tardigrad.privacy.noise import Noise

MOST_SIGNS = 4_000_000_000
"""A canary's direction takes a byte a parameter."""
CHUNK = 64
TOO_LONG = 100.0
"""Length of a canary's upload over the clip. A run that does not clip gives the canary away."""
SAMPLE = 256
"""Coordinates of each released vector whose noise is checked."""

Matrix = NDArray[np.float64]


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


@dataclass
class Observations:
    """What the auditor saw, step by step. Lengths are in clips."""

    weights: list[Matrix] = field(default_factory=list)
    """Of each canary's contribution; 0 where it took no part."""
    along: list[Matrix] = field(default_factory=list)
    """The released sum without the other clients, along each canary's direction."""
    of_all: list[Matrix] = field(default_factory=list)
    """The same of what the canaries would have sent if all of them were in."""
    of_included: list[Matrix] = field(default_factory=list)
    """The same of what the included canaries sent, clipped as promised."""
    noise: dict[str, list[Matrix]] = field(default_factory=dict)
    """By the name of what is released: some coordinates without anybody's contribution."""
    broken: dict[str, str] = field(default_factory=dict)
    """Promises that were seen to be broken, each when it was first."""


class Auditor:
    """Somebody who plays the canaries of a run and watches all that it releases.

    Two layers belong to the auditor: `canaries`, below all others, puts the canaries' uploads in the place of
    those that were trained; `watch`, above all others, sees what is released.
    """

    def __init__(self, canaries: Canaries, guarantee: Guarantee, clip: ClipLayer) -> None:
        self.drawn, self.guarantee = canaries, guarantee
        self.record = Observations()
        self.canaries, self.watch = CanaryLayer(self), WatchLayer(self)
        self._mechanism = clip
        self._clip = guarantee.clip  # as promised; the auditor does not ask the mechanism for it
        self._rows = {client: row for row, client in enumerate(canaries.included)}
        self._took_part: dict[int | str, list[int]] = {}

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        """Draw the canaries' directions for what clients upload."""
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
        """Return what the client of this delivery uploads, and note what is known of it."""
        client = delivery.client
        self._count(client, delivery.version)
        row = self._rows.get(client) if isinstance(client, int) else None
        if row is None:
            short, within = clipped(upload.vectors, self._clip)
            flat = torch.cat([vector.reshape(-1) for vector in short.values()]).cpu()
            self._others.add_(flat.double(), alpha=delivery.weight)
            self._know_extras(delivery, within)
            return upload
        included = self.drawn.included[int(client)]
        own = self._signs[row].float() / self._length
        self._weights[row] += delivery.weight
        self._all.add_(own, alpha=delivery.weight)
        if included:
            self._in.add_(own, alpha=delivery.weight)
            self._know_extras(delivery, within=False)
        sent = own * (TOO_LONG * self._clip if included else 0.0)
        parts = sent.to(device).split(self._sizes)
        vectors = {name: p.view(shape) for (name, shape), p in zip(self._shapes.items(), parts)}
        return replace(upload, vectors=vectors)

    def is_out(self, delivery: Accepted) -> bool:
        """Whether the client of this delivery is a canary whose whole payload is zeros."""
        return isinstance(delivery.client, int) and self.drawn.included.get(delivery.client) is False

    def _count(self, client: int | str, step: int) -> None:
        """Note whether the client was let in too often or too early."""
        k, b = _limits(self.guarantee)
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
        """Note what an upload tells besides its vectors: whether it was within the clip, its version."""
        adaptive, gamma = self.guarantee.adaptive, self.guarantee.version_gamma
        if adaptive is not None:
            self._known[WITHIN][0] += adaptive.gamma * (within - 0.5)
        if gamma:
            self._known[VERSIONS][delivery.staleness] += gamma * delivery.weight

    def see(self, released: Mapping[str, Tensor], extras: dict[str, Tensor]) -> None:
        """Note what the run has released in this step."""
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
        """Follow the clip by what was released, and compare it with the mechanism's own."""
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
        """For each canary that may have shown: how much it seems to be in, and whether it is.

        Where sampling is trusted, when a canary took part is a secret, and the auditor must not use it.
        """
        record, guarantee = self.record, self.guarantee
        along, weights = np.array(record.along).T, np.array(record.weights).T  # canaries x steps
        included = np.array(list(self.drawn.included.values()))
        if isinstance(guarantee.mode, BySampling):
            likelihoods = log_likelihoods(along, guarantee.mode.rate, noise_scale(guarantee))
            return likelihoods.tolist(), included.tolist()
        present = weights.any(axis=1)
        if present.sum() < 2:
            raise ConfigError(
                f"canaries: only {present.sum()} of them took part; give more of them, or more steps"
            )
        of_all = np.array(record.of_all).T
        whitened = np.linalg.solve(self.covariance(), weights.T).T
        length = max(1.0, 2 * float((whitened * along).sum() / (whitened * of_all).sum()))
        scores = (whitened * (along - length * of_all / 2)).sum(axis=1)
        return scores[present].tolist(), included[present].tolist()

    def covariance(self) -> Matrix:
        """Of the noise between steps, for a multiplier of 1."""
        k, b = _limits(self.guarantee)
        mixing = mixing_matrix(self.guarantee.noise, len(self.record.weights), self.guarantee.steps, k, b)
        return mixing @ mixing.T


class CanaryLayer(UploadLayer):
    """Puts the canaries' uploads in the place of those that were trained. Lies below all other layers."""

    name: ClassVar[str] = "canaries"

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self.before: dict[str, Tensor] = {}
        """The buffer's extras before the last upload."""

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self._auditor.begin(surroundings, extras)

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        self.before = {name: extra.clone() for name, extra in buffer.extras.items()}
        return self._auditor.upload_of(delivery, upload, start.device)


class WatchLayer(UploadLayer):
    """Shows the auditor what is released. Lies above all other layers."""

    name: ClassVar[str] = "watch"

    def __init__(self, auditor: Auditor) -> None:
        self.auditor = auditor

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        if self.auditor.is_out(delivery):  # nothing of a payload of zeros is added up
            buffer.extras |= self.auditor.canaries.before
        return upload

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        self.auditor.see(total.sums, buffer.extras)
        return total

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        self.auditor.follow(total.version, total.divisor)
        return {}


def noise_scale(guarantee: Guarantee) -> float:
    """What the noise is multiplied with, over the clip."""
    return guarantee.noise_multiplier * guarantee.overhead


def log_likelihoods(along: Matrix, rate: float, sigma: float) -> Matrix:
    """Of being in, against being out, for canaries that join each step with this probability.

    If the canary is in, a step's number is normal around 1 with probability `rate`, else around 0.
    """
    joined = math.log(rate) + (along - 0.5) / sigma**2
    stayed = math.log1p(-rate) if rate < 1 else -math.inf
    total: Matrix = np.logaddexp(joined, stayed).sum(axis=1)
    return total


def _limits(guarantee: Guarantee) -> tuple[int, int]:
    limits = guarantee.limits
    return (limits.participations, limits.separation) if limits else (guarantee.steps, 1)


def _samples(sizes: list[int], seed: int) -> list[Tensor]:
    """Of each vector, the coordinates whose noise is checked."""
    generator = torch.Generator().manual_seed(seed ^ 2)
    return [torch.randperm(size, generator=generator)[:SAMPLE] for size in sizes]


def mixing_matrix(noise: Noise, steps: int, planned: int, k: int, b: int) -> Matrix:
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
