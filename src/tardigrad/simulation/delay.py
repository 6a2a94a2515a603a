"""Delay laws: how long a trip takes in virtual time, and whether it ends with an upload."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from tardigrad.core.draws import Draws, uniform
from tardigrad.core.pace import check_trip
from tardigrad.core.setting import Setting, by_name
from tardigrad.data.clients import Clients
from tardigrad.simulation.trace_file import TraceRow, read_rows


class _Delay(Setting):
    by_examples: ClassVar[bool] = False
    """Whether a duration is multiplied by the client's number of examples."""
    device_spread: NonNegativeFloat = 0.0
    """How much devices differ permanently: every duration is multiplied by a log-normal factor of its device
    (median 1) with this spread."""
    give_up: float = Field(default=0.0, ge=0, lt=1)
    """The probability that a trip ends without an upload."""

    @abstractmethod
    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        """Return n durations of a typical device, none of them negative."""


class ConstantDelay(_Delay):
    """Every trip takes the same time."""

    kind: Literal["constant"] = "constant"
    duration: NonNegativeFloat = 1.0
    """The duration of every trip."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self.duration)


class HalfNormal(_Delay):
    """minimum + |N(0, scale)|, as measured in a production system (FedBuff, Appendix C.1)."""

    kind: Literal["half_normal"] = "half_normal"
    scale: PositiveFloat = 1.0
    """Standard deviation of the normal distribution; the mean of |N(0, scale)| is 0.798 scale."""
    minimum: NonNegativeFloat = 0.0
    """Added to every duration."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return self.minimum + np.abs(random.normal(0.0, self.scale, n))


class UniformDelay(_Delay):
    """Uniform between `low` and `high`."""

    kind: Literal["uniform"] = "uniform"
    low: NonNegativeFloat = 0.0
    """The shortest duration."""
    high: NonNegativeFloat = 2.0
    """The longest duration."""

    @model_validator(mode="after")
    def _in_order(self) -> UniformDelay:
        if self.high < self.low:
            raise ValueError(f"high must be at least low ({self.low:g}); {self.high:g} was given")
        return self

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return random.uniform(self.low, self.high, n)


class ExponentialDelay(_Delay):
    """Exponential durations."""

    kind: Literal["exponential"] = "exponential"
    mean: PositiveFloat = 1.0
    """The mean duration."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return random.exponential(self.mean, n)


class LogNormal(_Delay):
    """Log-normal: a few trips take very long."""

    kind: Literal["log_normal"] = "log_normal"
    median: PositiveFloat = 1.0
    """The median duration."""
    spread: PositiveFloat = 1.0
    """Standard deviation of the logarithm."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return self.median * random.lognormal(0.0, self.spread, n)


class ExponentialByExamples(_Delay):
    """Exponential with a mean of `straggler` times the client's examples (FedBuff, Appendix C.2)."""

    kind: Literal["exponential_by_examples"] = "exponential_by_examples"
    by_examples: ClassVar[bool] = True
    straggler: PositiveFloat = 1.0
    """The paper's lambda: mean time per example."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return random.exponential(self.straggler, n)


class Trace(_Delay):
    """Measured durations: each trip takes a random one of its client, or of all clients if the file has none
    of this client. (To replay the start times too, use pace.kind = "scripted" with the same file.)"""

    kind: Literal["trace"] = "trace"
    file: Path
    """A CSV file with the columns client, start, duration; clients are counted from 0, in the order in which
    the data names them."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return random.random(n)  # selects one of the recorded durations


Delay = Annotated[
    HalfNormal | ConstantDelay | UniformDelay | ExponentialDelay | LogNormal | ExponentialByExamples | Trace,
    Field(discriminator="kind"),
    by_name,
]


def read_trace(file: Path, key: str) -> list[tuple[float, float, int]]:
    """Return (start, duration, client) of every row of a trace file.

    Raises a ConfigError that names the line if a row is malformed.
    """

    def parse(row: TraceRow) -> tuple[float, float, int]:
        trip = (row.number("start"), row.number("duration"), row.client())
        check_trip(*trip)
        return trip

    return read_rows(file, key, ("client", "start", "duration"), "trips", parse)


class Durations:
    """A delay law applied to a population: durations(trip, client) is how long that trip takes."""

    def __init__(
        self, law: Delay, clients: Clients, seed: int, device: Callable[[int], float] | None = None
    ) -> None:
        """`device`: a further permanent factor of each client's durations."""
        self._law, self._clients, self._device = law, clients, device
        self._same = not law.device_spread and not law.by_examples and device is None
        self._draws = Draws(seed, "delay", law.sample)
        self._devices = Draws(seed, "device", lambda random, n: random.lognormal(0.0, law.device_spread, n))
        self._endings = Draws(seed, "give up", uniform)
        self._recorded: dict[int, list[float]] = {}
        if isinstance(law, Trace):
            for _, duration, client in read_trace(law.file, "delay.file"):
                self._recorded.setdefault(client, []).append(duration)
            self._recorded[-1] = [d for own in self._recorded.values() for d in own]

    def factor(self, client: int) -> float:
        """Return the permanent factor of this client's durations; that of a typical device is 1."""
        factor = self._devices[client] if self._law.device_spread else 1.0
        if self._device is not None:
            factor *= self._device(client)
        return factor * self._clients.examples(client) if self._law.by_examples else factor

    def __call__(self, trip: int, client: int) -> float:
        drawn = self._draws[trip]
        if self._recorded:
            own = self._recorded.get(client, self._recorded[-1])
            drawn = own[int(drawn * len(own))]
        return drawn if self._same else drawn * self.factor(client)

    def gives_up(self, trip: int) -> bool:
        """Return whether this trip ends without an upload."""
        return self._law.give_up > 0 and self._endings[trip] < self._law.give_up
