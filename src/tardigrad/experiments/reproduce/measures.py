"""The measures of a run that a claim can be about, each one number."""

from __future__ import annotations

import math
from collections.abc import Callable

from tardigrad.core.draws import key
from tardigrad.experiments.compare.outcome import COSTS, Outcome
from tardigrad.experiments.config.schema import Config


def measure(name: str, outcome: Outcome, target: float, config: Config) -> float | None:
    """Return the measure of a run, or None if it has none. A cost is infinite if the target was missed."""
    if name in COSTS:
        if not outcome.curve:
            return None
        point = outcome.reached(target)
        return math.inf if point is None else point.cost(name)
    return _OTHERS[name](outcome, config)


def _accuracy(outcome: Outcome, config: Config) -> float | None:
    return outcome.curve[-1].value if outcome.curve else None


def _best_accuracy(outcome: Outcome, config: Config) -> float | None:
    return outcome.best if outcome.curve else None


def _staleness(outcome: Outcome, config: Config) -> float | None:
    return outcome.mean_staleness


def _least_squares_error(outcome: Outcome, config: Config) -> float | None:
    errors = outcome.least_squares_errors
    return sum(errors) / len(errors) if errors else None


def _examples(outcome: Outcome, config: Config) -> float | None:
    """Return the mean number of examples of the clients that took part, over that of the whole population."""
    if config.data is None or not outcome.uploads:
        return None
    clients = config.data.federation(key(config.seed, "data")).clients
    sizes = {str(clients.name(i)): clients.examples(i) for i in range(len(clients))}
    taking_part = sum(sizes[client] * n for client, n in outcome.uploads.items()) / outcome.uploads.total()
    return taking_part / (sum(sizes.values()) / len(sizes))


_OTHERS: dict[str, Callable[[Outcome, Config], float | None]] = {
    "accuracy": _accuracy,
    "best accuracy": _best_accuracy,
    "staleness": _staleness,
    "least-squares error": _least_squares_error,
    "examples": _examples,
}
MEASURES = (*COSTS, *_OTHERS)
MORE_IS_BETTER = ("accuracy", "best accuracy", "examples")
TO_A_TARGET = COSTS

UNITS = {
    "trips": "client trips to the target",
    "steps": "server steps to the target",
    "time": "virtual time to the target",
    "bytes": "bytes to the target",
    "accuracy": "accuracy at the end",
    "best accuracy": "best accuracy",
    "staleness": "mean staleness",
    "least-squares error": "mean least-squares error",
    "examples": "examples of those who take part, over the population's",
}
