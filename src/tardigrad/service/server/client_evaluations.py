"""Evaluations by clients on their own held-out examples, averaged by version.

A client reports about the model that it downloaded. When no trip that started from a version is under way any
more, the reports about it become one evaluation, weighted by their examples and marked as federated.

>>> reports = ClientEvaluations()
>>> reports.enter(0, 10, {"accuracy": 0.5}); reports.enter(0, 30, {"accuracy": 0.9})
>>> reports.finished([0], RunPosition(version=2, trips=5, time=1.0, bytes=0))[0].metrics
{'accuracy': 0.8}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from tardigrad.core.events import ModelEvaluated, RunPosition

MOST_METRICS = 32


class ReportsDocument(TypedDict):
    """`ClientEvaluations` as JSON."""

    rows: list[tuple[int, int, int, dict[str, float]]]
    """Version, examples, clients, and sums by metric."""
    metrics: dict[str, float]
    missing: NotRequired[list[tuple[int, str, int]]]
    """Version, metric, and examples of the clients that did not report it: it may have no value there."""


class ClientEvaluations:
    """The sums of the clients' metrics, by version."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[str, float]] = {}
        self._examples: dict[int, int] = {}
        self._missing: dict[int, dict[str, int]] = {}  # examples of clients that did not report a metric
        self._clients: dict[int, int] = {}
        self.metrics: dict[str, float] = {}
        """Metrics of the last evaluation."""

    def enter(self, version: int, examples: int, metrics: dict[str, float]) -> None:
        """Add the report of a client about this version."""
        sums, missing = self._sums.setdefault(version, {}), self._missing.setdefault(version, {})
        for name in metrics.keys() - sums.keys():
            missing[name] = self._examples.get(version, 0)
        for name in sums.keys() - metrics.keys():
            missing[name] = missing.get(name, 0) + examples
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + examples * value
        self._examples[version] = self._examples.get(version, 0) + examples
        self._clients[version] = self._clients.get(version, 0) + 1

    def versions(self) -> list[int]:
        """Return the versions with reports that are not yet an evaluation."""
        return sorted(self._sums)

    def finished(self, versions: Iterable[int], position: RunPosition) -> list[ModelEvaluated]:
        """Return the evaluations of these versions, about which no client will report any more. `position`:
        how far the run has come; its version is replaced with the one that was evaluated."""
        evaluations = []
        for version in sorted(versions):
            sums = self._sums.pop(version, None)
            if sums is None:
                continue
            examples, clients = self._examples.pop(version), self._clients.pop(version)
            missing = self._missing.pop(version, {})
            self.metrics = {name: total / (examples - missing.get(name, 0)) for name, total in sums.items()}
            evaluations.append(
                ModelEvaluated(
                    *position._replace(version=version), federated=True, clients=clients, examples=examples,
                    metrics=self.metrics,
                )
            )  # fmt: skip
        return evaluations

    def state(self) -> ReportsDocument:
        """Return everything as JSON."""
        rows = [(v, self._examples[v], self._clients[v], dict(sums)) for v, sums in self._sums.items()]
        missing = [(v, name, n) for v, own in self._missing.items() for name, n in own.items() if n]
        return {"rows": rows, "metrics": dict(self.metrics), "missing": missing}

    def restore(self, state: ReportsDocument) -> None:
        """Go on from `state()`."""
        self._sums = {row[0]: row[3] for row in state["rows"]}
        self._examples = {row[0]: row[1] for row in state["rows"]}
        self._clients = {row[0]: row[2] for row in state["rows"]}
        self.metrics = state["metrics"]
        self._missing = {}
        for version, name, examples in state.get("missing", []):
            self._missing.setdefault(version, {})[name] = examples
