"""Audit the privacy of a config: run it once with canaries, and bound epsilon from below by what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tardigrad.core.draws import key
from tardigrad.errors import ConfigError
from tardigrad.experiments.config import Config
from tardigrad.experiments.run import build, one_thread
from tardigrad.privacy.canaries import AuditedAggregator, Canaries
from tardigrad.privacy.settings import LocalPrivacy
from tardigrad.simulation.engine import Event


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    accountant_epsilon: float
    """What the accountant says that the run cost."""
    lower_bound: float
    """The true epsilon is at least this, with the given confidence."""
    confidence: float
    delta: float
    canaries: int
    """That took part."""
    steps: int
    holds: bool
    """Whether the bound is below the accountant's epsilon."""

    def summary(self) -> dict[str, float | int | bool]:
        """As JSON."""
        return asdict(self)


class AuditRun:
    """One audited run: iterate over it for its events, then ask for the result."""

    def __init__(self, config: Config, canaries: int = 1000, confidence: float = 0.95) -> None:
        if config.privacy is None or isinstance(config.privacy, LocalPrivacy):
            raise ConfigError(
                "privacy: an audit is of a run with central privacy; set privacy.kind to 'participation' or "
                "'poisson'"
            )
        self._confidence = confidence
        seed = key(config.seed, "canaries")
        self._simulation = build(
            config, canaries=lambda population: Canaries.drawn(population, canaries, seed)
        )

    def events(self) -> Iterable[list[Event]]:
        """Run it."""
        with one_thread():
            yield from self._simulation.engine.run()

    def result(self) -> Audit:
        """What was found, after the run."""
        aggregator = self._simulation.aggregator
        assert isinstance(aggregator, AuditedAggregator)
        guarantee, steps = aggregator.guarantee, aggregator.version
        bound, present = aggregator.lower_bound(self._confidence)
        epsilon = guarantee.epsilon(steps)
        return Audit(epsilon, bound, self._confidence, guarantee.delta, present, steps, bound <= epsilon)
