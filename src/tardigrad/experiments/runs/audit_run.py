"""Audit the privacy of a config: run it once with canaries, and bound epsilon from below by what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tardigrad.core.draws import key
from tardigrad.core.events import Event
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.run import build, one_thread
from tardigrad.privacy.audit import audit_scores, largest_bound
from tardigrad.privacy.layers.canaries import Auditor, Canaries, WatchLayer, noise_scale
from tardigrad.privacy.mechanism_checks import length_defect, noise_defects
from tardigrad.privacy.settings import LocalPrivacy

CHECKS = 0.01
"""Of the audit's error probability, the share of the checks of noise and clip: they need little."""


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    accountant_epsilon: float
    """What the accountant says that the run cost."""
    lower_bound: float
    """The true epsilon is at least this, with the given confidence."""
    largest_bound: float
    """The bound if every guess were right: so many canaries can show no more."""
    power: bool
    """Whether that is above the accountant's epsilon; if not, the guesses cannot refute it."""
    defects: tuple[str, ...]
    """Where noise, clip or participations are seen not to be those that were promised."""
    confidence: float
    """That a run which keeps its promise is not called broken."""
    delta: float
    canaries: int
    """That took part."""
    steps: int
    holds: bool
    """Whether the bound is at most the accountant's epsilon and nothing was seen to be broken."""

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def verdict(self) -> str:
        """What it comes to, in words."""
        if self.defects:
            return f"BROKEN: {'; '.join(self.defects)}"
        if not self.holds:
            return "BROKEN: the run gives away more than the accountant says"
        if not self.power:
            return (
                f"no power: {self.canaries} canaries cannot show more than epsilon {self.largest_bound:.4g}, "
                "whatever the run gives away; the tests of noise, clip and participations found nothing"
            )
        return "consistent"


class AuditRun:
    """One audited run: iterate over it for its events, then ask for the result."""

    def __init__(self, config: Config, canaries: int = 1000, confidence: float = 0.95) -> None:
        if config.privacy is None or isinstance(config.privacy, LocalPrivacy):
            raise ConfigError(
                "privacy: an audit is of a run with central privacy; set privacy.kind to 'participation' or "
                "'poisson'"
            )
        if not 0 < confidence < 1:
            raise ConfigError(f"audit: confidence = {confidence:g}: it must lie between 0 and 1")
        self._error = 1 - confidence
        seed = key(config.seed, "canaries")
        self._simulation = build(
            config, canaries=lambda population: Canaries.drawn(population, canaries, seed)
        )
        guarantee = self._simulation.guarantee
        assert guarantee is not None
        if guarantee.noise_multiplier == 0:
            raise ConfigError("privacy.noise_multiplier: without noise nothing is promised; give more than 0")
        if guarantee.emulated != 1:
            raise ConfigError(
                "privacy.emulated_cohort: the promise is that of a larger run, which an audit of this one "
                "cannot test; leave it out"
            )

    def events(self) -> Iterable[list[Event]]:
        """Run it."""
        with one_thread():
            yield from self._simulation.engine.run()

    def result(self) -> Audit:
        """What was found, after the run."""
        aggregator = self._simulation.aggregator
        (auditor,) = (layer.auditor for layer in aggregator.layers if isinstance(layer, WatchLayer))
        guarantee, steps = auditor.guarantee, aggregator.version
        scores, included = auditor.scores()
        confidence = 1 - self._error * (1 - CHECKS)
        bound = audit_scores(scores, included, guarantee.delta, confidence)
        largest = largest_bound(len(scores), guarantee.delta, confidence)
        epsilon = guarantee.epsilon(steps)
        defects = _defects(auditor, self._error * CHECKS / 2)
        return Audit(
            accountant_epsilon=epsilon, lower_bound=bound, largest_bound=largest, power=largest > epsilon,
            defects=defects, confidence=1 - self._error, delta=guarantee.delta, canaries=len(scores),
            steps=steps, holds=bound <= epsilon and not defects,
        )  # fmt: skip


def _defects(auditor: Auditor, error: float) -> tuple[str, ...]:
    """What was seen to be broken; two tests, each with this error probability."""
    record, scale = auditor.record, noise_scale(auditor.guarantee)
    covariance = auditor.covariance()
    included = np.array(list(auditor.drawn.included.values()))
    weights, along, sent = (
        np.array(rows).T[included] for rows in (record.weights, record.along, record.of_included)
    )
    longer = length_defect(weights, along - sent, sent, covariance, scale, error)
    if longer is not None:  # then more than noise is left
        return (*record.broken.values(), longer)
    released = {name: np.array(rows) for name, rows in record.noise.items()}
    return (*record.broken.values(), *noise_defects(released, covariance, scale, error))
