"""Evaluation during a run: when and on what the model is evaluated, and which metrics are reported."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import AfterValidator, Field, PositiveInt, model_validator
from torch import Tensor

from tardigrad.core.draws import key
from tardigrad.core.metric import Better, Metric
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Examples, Federation
from tardigrad.data.trigger import ATTACK_SUCCESS, Trigger
from tardigrad.errors import RunError
from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.examples import take
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads.named_metrics import NamedMetrics

log = logging.getLogger("tardigrad.data")

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
    """Metrics besides those of the head, such as ["f1", "auc"] (docs/metrics.md). A server whose clients
    evaluate takes these from them, too."""
    main: MetricName | None = None
    """The metric that targets, tables and charts are about (default: that of the head, such as accuracy)."""
    better: Better | None = None
    """Whether "higher" or "lower" values of `main` are better (default: known for each metric)."""

    @model_validator(mode="after")
    def _one_clock(self) -> Evaluation:
        if self.every_steps is not None and self.every_trips is not None:
            raise ValueError("give every_steps or every_trips, not both")
        return self

    @property
    def metric(self) -> Metric:
        """The main metric of a resolved config."""
        return Metric.named(self.main or "accuracy", self.better)

    def sample(self, examples: int, seed: int) -> Tensor:
        """Return the indices of the test examples that are used, of so many."""
        order = np.random.default_rng(key(seed, "test examples")).permutation(examples)
        return torch.from_numpy(np.sort(order[: self.examples]))

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
        names: tuple[str, ...] = (),
        trigger: Trigger | None = None,
    ) -> None:
        """`settings`: resolved. `names`: metrics to compute besides those of the head. `trigger`: that of a
        backdoor, whose success is measured on the test set."""
        self._flat, self._metric, self._names = flat, settings.metric, names
        self._undefined: set[str] = set()
        if flat.has_personal:
            federation = replace(federation, test=None)  # only clients have all parts of the model
        if federation.test is not None and settings.examples is not None:
            features, labels = federation.test
            chosen = settings.sample(len(labels), seed)
            federation = replace(federation, test=(take(features, chosen), labels[chosen]))
        self._federation = federation
        test = federation.test
        self._triggered = None if trigger is None or test is None else trigger.test_set(test)
        self._own: list[tuple[int, float, Examples]] = []
        """Number, slowness and held-out examples of each client that evaluates."""
        if settings.held_out > 0:
            clients = federation.clients
            random = np.random.default_rng(key(seed, "evaluation"))
            count = min(settings.clients, len(clients))
            for client in np.sort(random.choice(len(clients), size=count, replace=False)).tolist():
                held_out = clients.held_out(client)
                if held_out is not None:
                    self._own.append((client, slowness(client), held_out))

    def __call__(
        self, vector: Tensor, version: int, memories: Mapping[int, Vectors] | None = None
    ) -> dict[str, float]:
        """Return the metrics of a model; raise a RunError if one is not finite.

        `memories`: what clients remember. A client evaluates with the personal parts in its memory; a model
        with personal parts is evaluated by clients only.
        """
        metrics: dict[str, float] = {}
        if self._federation.test is not None:
            metrics |= self._evaluate(vector, self._federation.test, "the test set")
        if self._triggered is not None:
            metrics[ATTACK_SUCCESS] = self._evaluate(vector, self._triggered)["accuracy"]
        if self._own:
            metrics |= self._on_clients(vector, memories or {})
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RunError(
                    f"{name} is {value} at version {version}: training has diverged; "
                    "lower local.lr or algorithm.lr"
                )
        return metrics

    def _evaluate(
        self, vector: Tensor, examples: Examples, where: str = "", memory: Vectors | None = None
    ) -> dict[str, float]:
        """Return the metrics on some examples. Those that have no value there are left out; a warning says
        so once, if `where` says what the examples are."""
        federation = self._federation
        named = NamedMetrics(self._names, federation.head) if self._names else None
        metrics = evaluate(
            self._flat, federation.head, vector, *examples, federation.transform, named=named, memory=memory
        )  # fmt: skip
        for name, reason in ({} if named is None or not where else named.undefined).items():
            if name not in self._undefined:
                self._undefined.add(name)
                log.warning(
                    "%s has no value on %s, because %s; it is left out", name, where, reason,
                    extra={"event": "evaluation"},
                )  # fmt: skip
        return metrics

    def _on_clients(self, vector: Tensor, memories: Mapping[int, Vectors]) -> dict[str, float]:
        metric, name = self._metric, self._metric.name
        found = [
            self._evaluate(vector, own, memory=memories.get(client)).get(name) for client, _, own in self._own
        ]
        scores = np.array([score for score in found if score is not None])
        slowness = np.array([slow for (_, slow, _), score in zip(self._own, found) if score is not None])
        if not len(scores):
            return {}
        worst_first = np.sort(scores)[::-1] if metric.lower_is_better else np.sort(scores)
        metrics = {
            f"client_{name}": float(scores.mean()),
            f"client_{name}_worst_decile": float(worst_first[: max(1, len(scores) // 10)].mean()),
        }
        middle = np.median(slowness)
        fast, slow = scores[slowness < middle], scores[slowness > middle]
        if len(fast) and len(slow):  # only if the clients' devices differ
            metrics[f"client_{name}_fast"] = float(fast.mean())
            metrics[f"client_{name}_slow"] = float(slow.mean())
        if self._federation.test is None:
            metrics[name] = metrics[f"client_{name}"]
        if self._flat.has_personal:
            trained = [client for client, _, _ in self._own if memories.get(client)]
            metrics["clients_with_personal_parts"] = float(len(trained))
        return metrics
