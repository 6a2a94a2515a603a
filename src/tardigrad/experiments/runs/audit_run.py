"""Audit the privacy of a config: run it once with canaries, and compute a lower bound of epsilon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from tardigrad.core.draws import key
from tardigrad.core.events import Event
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import one_thread
from tardigrad.experiments.runs.private_run import secrets_in_memory
from tardigrad.experiments.runs.simulation_assembly import Simulation, assemble_simulation, training_parts
from tardigrad.privacy.audit import audit_scores, largest_bound
from tardigrad.privacy.canary_scores import noise_scale
from tardigrad.privacy.layers.canaries import Auditor, Canaries, WatchLayer
from tardigrad.privacy.mechanism_checks import length_defect, noise_defects
from tardigrad.privacy.settings import LocalPrivacy

CHECKS = 0.01
"""The share of the audit's error probability that the checks of noise and clip have; they need little."""


@dataclass(frozen=True)
class Audit:
    """The findings of an audit."""

    accountant_epsilon: float
    """The privacy loss of the run according to the accountant."""
    lower_bound: float
    """The true epsilon is at least this, with the given confidence, from all released sums: what the server
    of a secure run sees."""
    public_bound: float | None
    """The same from the first and the last model alone, which the public sees; None if the algorithm's
    clients do not upload changes of the model."""
    largest_bound: float
    """The bound if every guess were right, which is the most that so many canaries can show."""
    power: bool
    """Whether `largest_bound` is above the accountant's epsilon; if not, the guesses cannot refute it."""
    defects: tuple[str, ...]
    """Sentences on noise, clip or participations that differ from what was promised."""
    confidence: float
    """The probability that a run which keeps its promise is not called broken."""
    delta: float
    canaries: int
    """How many canaries took part."""
    steps: int
    holds: bool
    """Whether the bound is at most the accountant's epsilon and nothing was seen to be broken."""

    def summary(self) -> dict[str, object]:
        """Return all fields, as `--json` prints them."""
        return asdict(self)

    def verdict(self) -> str:
        """Return the finding as a sentence."""
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
    """One audited run: iterate over `events()`, then call `result()`."""

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
        assembly = assemble_simulation(config)
        drawn = Canaries.drawn(assembly.population, canaries, seed)
        secrets = secrets_in_memory(assembly.config)
        self._simulation = Simulation(assembly, training_parts(assembly), secrets, drawn)
        self._first = self._simulation.aggregator.broadcast()["model"]
        guarantee = assembly.guarantee
        assert guarantee is not None
        if guarantee.noise_multiplier == 0:
            raise ConfigError("privacy.noise_multiplier: without noise nothing is promised; give more than 0")
        if guarantee.emulated != 1:
            raise ConfigError(
                "privacy.emulated_cohort: the promise is that of a larger run, which an audit of this one "
                "cannot test; leave it out"
            )

    def events(self) -> Iterable[list[Event]]:
        """Run the simulation and yield its events."""
        with one_thread():
            yield from self._simulation.engine.run()

    def result(self) -> Audit:
        """Return the findings; call it after the run."""
        aggregator = self._simulation.aggregator
        (auditor,) = (layer.auditor for layer in aggregator.layers if isinstance(layer, WatchLayer))
        guarantee, steps = auditor.guarantee, aggregator.version
        scores, included = auditor.scores()
        confidence = 1 - self._error * (1 - CHECKS)
        bound = audit_scores(scores, included, guarantee.delta, confidence)
        public = auditor.scores_of_models(self._first, aggregator.broadcast()["model"])
        largest = largest_bound(len(scores), guarantee.delta, confidence)
        epsilon = guarantee.epsilon(steps)
        defects = _defects(auditor, self._error * CHECKS / 2)
        return Audit(
            accountant_epsilon=epsilon, lower_bound=bound,
            public_bound=None if public is None else audit_scores(*public, guarantee.delta, confidence),
            largest_bound=largest, power=largest > epsilon,
            defects=defects, confidence=1 - self._error, delta=guarantee.delta, canaries=len(scores),
            steps=steps, holds=bound <= epsilon and not defects,
        )  # fmt: skip


def _defects(auditor: Auditor, error: float) -> tuple[str, ...]:
    """Return the defects that were found, by two tests with this error probability each."""
    record, scale = auditor.record, noise_scale(auditor.guarantee)
    covariance = auditor.covariance()
    included = np.array(list(auditor.drawn.included.values()))
    weights, along, sent = (
        np.array(rows).T[included] for rows in (record.weights, record.along, record.of_included)
    )
    longer = length_defect(weights, along - sent, sent, covariance, scale, error)
    if longer is not None:  # then the rest is more than noise
        return (*record.broken.values(), longer)
    released = {name: np.array(rows) for name, rows in record.noise.items()}
    return (*record.broken.values(), *noise_defects(released, covariance, scale, error))
