"""Evaluation during a run: when and on what the model is evaluated, and which metrics are reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import AfterValidator, Field, PositiveInt, model_validator
from torch import Tensor

from tardigrad.core.draws import key
from tardigrad.core.setting import Setting
from tardigrad.data.clients import Examples, Federation
from tardigrad.errors import RunError
from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.flat import FlatModule

RESERVED = frozenset({"event", "version", "trips", "time", "bytes", "federated", "clients", "examples"})
"""Fields of an evaluation's event that are not metrics."""


def _not_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name!r} is a field of every evaluation; give the metric another name")
    return name


MetricName = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}$"), AfterValidator(_not_reserved)]


class Evaluation(Setting):
    """When and on what the model is evaluated."""

    every_steps: PositiveInt | None = None
    """Evaluate each time this many versions were made (default 10, unless every_trips is given)."""
    every_trips: PositiveInt | None = None
    """Evaluate each time this many trips have ended, in place of every_steps."""
    model_average: float | None = Field(default=None, gt=0, lt=1)
    """Evaluate a running average of the models with this decay, in place of the newest."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of its examples that each client keeps for evaluation; 0 for none."""
    examples: PositiveInt | None = None
    """Evaluate on a random sample of this many test examples, drawn once (default: on all)."""
    clients: PositiveInt = 100
    """Number of clients, drawn once, that evaluate on their held-out examples."""
    metrics: tuple[MetricName, ...] | None = None
    """Metrics that a server takes from its clients besides those of the built-in heads, such as ["f1"]."""

    @model_validator(mode="after")
    def _one_clock(self) -> Evaluation:
        if self.every_steps is not None and self.every_trips is not None:
            raise ValueError("give every_steps or every_trips, not both")
        return self

    def due(self, version: int, moved: bool, trips: int, ended: bool) -> bool:
        """Return whether to evaluate now: the model has just `moved`, or a trip has just `ended`."""
        if self.every_trips is not None:
            return ended and trips % self.every_trips == 0
        return moved and version % (self.every_steps or 10) == 0


class Evaluator:
    """Evaluates the models of one run."""

    def __init__(
        self,
        flat: FlatModule,
        federation: Federation,
        settings: Evaluation,
        slowness: Callable[[int], float],
        seed: int,
    ) -> None:
        self._flat = flat
        if federation.test is not None and settings.examples is not None:
            features, labels = federation.test
            order = np.random.default_rng(key(seed, "test examples")).permutation(len(labels))
            chosen = torch.from_numpy(np.sort(order[: settings.examples]))
            federation = replace(federation, test=(features[chosen], labels[chosen]))
        self._federation = federation
        self._own: list[tuple[float, Examples]] = []
        """Slowness and held-out examples of each client that evaluates."""
        if settings.held_out > 0:
            clients = federation.clients
            random = np.random.default_rng(key(seed, "evaluation"))
            count = min(settings.clients, len(clients))
            for client in np.sort(random.choice(len(clients), size=count, replace=False)).tolist():
                held_out = clients.held_out(client)
                if held_out is not None:
                    self._own.append((slowness(client), held_out))

    def __call__(self, vector: Tensor, version: int) -> dict[str, float]:
        """Return the metrics of a model; raise a RunError if one is not finite."""
        metrics: dict[str, float] = {}
        if self._federation.test is not None:
            metrics |= self._evaluate(vector, self._federation.test)
        if self._own:
            metrics |= self._on_clients(vector)
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RunError(
                    f"{name} is {value} at version {version}: training has diverged; "
                    "lower local.lr or algorithm.lr"
                )
        return metrics

    def _evaluate(self, vector: Tensor, examples: Examples) -> dict[str, float]:
        federation = self._federation
        return evaluate(self._flat, federation.head, vector, *examples, federation.transform)

    def _on_clients(self, vector: Tensor) -> dict[str, float]:
        scores = np.array([self._evaluate(vector, own)["accuracy"] for _, own in self._own])
        slowness = np.array([slow for slow, _ in self._own])
        metrics = {
            "client_accuracy": float(scores.mean()),
            "client_accuracy_worst_decile": float(np.sort(scores)[: max(1, len(scores) // 10)].mean()),
        }
        middle = np.median(slowness)
        fast, slow = scores[slowness < middle], scores[slowness > middle]
        if len(fast) and len(slow):  # only if the clients' devices differ
            metrics["client_accuracy_fast"] = float(fast.mean())
            metrics["client_accuracy_slow"] = float(slow.mean())
        if self._federation.test is None:
            metrics["accuracy"] = metrics["client_accuracy"]
        return metrics
