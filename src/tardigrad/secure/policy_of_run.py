"""The policy and the grid of a secure run, worked out from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace
from tardigrad.core.situation import Situation
from tardigrad.encodings.common_grid import Grid
from tardigrad.errors import ConfigError
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.settings import Participation
from tardigrad.secure.integer_noise import tail
from tardigrad.secure.masked_grid import spare
from tardigrad.secure.policy import CodedVector, Facts, HelperNoise, Policy, declared_digest
from tardigrad.secure.secure_settings import Secure

LONGEST = 2.0
"""How many clips long an upload may become by rounding."""
SEALED = {False: 80, True: 1168}
"""Bytes of an envelope, by whether it is safe against quantum computers."""


@dataclass(frozen=True)
class SecureRun:
    """The settings of a secure run that its policy follows from. All are resolved."""

    secure: Secure
    grid: Grid
    algorithm: Algorithm
    pace: Pace
    buffer: Buffer
    situation: Situation
    lengths: Mapping[str, int]
    """The lengths of the vectors of an upload, in their order."""
    privacy: Participation | None = None
    guarantee: Guarantee | None = None
    seed: int = 0

    @property
    def dimension(self) -> int:
        """The numbers in an upload."""
        return sum(self.lengths.values())

    @property
    def sealed_bytes(self) -> int:
        """How many bytes the envelopes of an upload have."""
        return self.secure.helper_count * SEALED[self.secure.post_quantum]

    def policy(
        self,
        run: str,
        settings: str,
        start: str,
        helpers: tuple[str, ...],
        server: str,
        declaration: str = "",
    ) -> Policy:
        """Return the policy.

        `run`: the identifier of the run. `settings`: what tasks ask for. `start`: the digest of version 0, as
        clients download it. `helpers`, `server`: their identities. `declaration`: what clients must bring
        that have a table and no code; "" if clients need code.
        """
        grid, size, least = self.grid, self.buffer.size, self.secure.least_clients
        assert size is not None
        assert least is not None, "resolved"
        return Policy(
            run=run,
            settings=settings,
            declaration=declared_digest(declaration),
            vectors=tuple(
                CodedVector(name=name, length=length, discounted=name not in self.algorithm.undiscounted)
                for name, length in self.lengths.items()
            ),
            bits=grid.bits,
            largest=grid.largest,
            step=grid.step,
            norm=grid.norm(self.dimension),
            denominator=grid.denominator,
            staleness=self.algorithm.law,
            batch=size,
            opening=self.situation.population if self.algorithm.opening else 0,
            least_clients=least,
            staleness_bound=0 if self.pace.in_rounds else self.buffer.staleness_bound,
            limits=None if self.guarantee is None else self.guarantee.limits,
            noise=self._noise(),
            facts=Facts(**asdict(self.situation)),
            start=start,
            helpers=helpers,
            server=server,
            post_quantum=self.secure.post_quantum,
        )

    def _noise(self) -> HelperNoise | None:
        """Return the noise that each helper adds, or None if nobody adds any."""
        guarantee, norm = self.guarantee, self.grid.norm(self.dimension)
        if guarantee is None or guarantee.noise_multiplier == 0:
            return None
        assert self.privacy is not None
        assert norm is not None, "a private run clips"
        return HelperNoise(
            mechanism=self.privacy.noise,
            toeplitz=guarantee.chosen.toeplitz,
            deviation=guarantee.noise_multiplier * norm * self.grid.denominator,
            steps=guarantee.steps,
            allowed=guarantee.allowed,
            noise_multiplier=guarantee.noise_multiplier,
            epsilon=guarantee.epsilon(),
            delta=guarantee.delta,
            seed=self.seed if guarantee.noise_from == "seed" else None,
        )


def grid_with_headroom(grid: Grid, dimension: int, guarantee: Guarantee | None, helpers: int) -> Grid:
    """Return the finest grid on which no sum with the noise of all helpers wraps around, and one that does is
    noticed. Raise a ConfigError if there is none.

    `dimension`: the numbers in an upload.
    """
    assert grid.uploads is not None, "resolved"
    free, heaviest = 2 ** (grid.bits - 1) - spare(grid.bits), grid.uploads * grid.denominator

    def needed(largest: int) -> int:
        """Return how large a sum can be, with noise, if the largest code is this one."""
        norm = _with_largest(grid, largest).norm(dimension)
        if guarantee is None or guarantee.noise_multiplier == 0 or norm is None:
            return largest * heaviest
        deviation = guarantee.noise_multiplier * norm * grid.denominator
        noise = tail(guarantee.noise, deviation, guarantee.steps, dimension, helpers)
        return largest * heaviest + noise

    low, high = 0, free // heaviest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= free else (low, middle - 1)
    if low < 1:
        raise ConfigError(
            f"secure.bits: a sum of {grid.uploads} uploads that weigh up to {grid.denominator} "
            f"(secure.denominator) each, with the noise of all helpers, does not fit into {grid.bits} "
            "bits; give more bits, a smaller denominator, or a smaller buffer.size"
        )
    found = _with_largest(grid, low)
    norm = found.norm(dimension)
    if norm is not None and grid.clip is not None and norm * found.step > LONGEST * grid.clip:
        raise ConfigError(
            f"secure.bits: rounding to {grid.bits} bits would make uploads of {dimension:,} numbers "
            f"{norm * found.step / grid.clip:.3g} times as long as privacy.clip, and the noise as much "
            "larger; give 32 bits, a smaller secure.denominator, or a smaller buffer.size"
        )
    return found


def _with_largest(grid: Grid, largest: int) -> Grid:
    """Return the grid with this largest code."""
    assert grid.uploads is not None
    headroom = 2 ** (grid.bits - 1) - largest * grid.uploads * grid.denominator
    return grid.model_copy(update={"headroom": headroom})
