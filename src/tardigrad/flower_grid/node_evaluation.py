"""Evaluation: centrally by a function of the app, or by the nodes, which are sent evaluate messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tardigrad.core.draws import key
from tardigrad.core.events import Event, ModelEvaluated, RunPosition
from tardigrad.data.evaluation import RESERVED
from tardigrad.flower_grid.carrier import Order, Reply
from tardigrad.flower_grid.flower_log import log
from tardigrad.flower_grid.named_arrays import Arrays

EXAMPLES = "num-examples"
"""The metric with a node's number of examples."""

CentralEvaluation = Callable[[int, Arrays], Mapping[str, float] | None]


@dataclass
class _Round:
    """One version that nodes evaluate. A node that is training is asked when it is back."""

    where: RunPosition
    arrays: Arrays
    wanted: set[int]
    """Nodes that are still to be asked."""
    asked: set[int] = field(default_factory=set)
    """Nodes that were asked and have not answered."""
    reports: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    def event(self) -> ModelEvaluated | None:
        """Return the mean of the reports, weighted by examples; None if there is no report."""
        means = weighted_means(self.reports)
        examples = round(sum(weight for weight, _ in self.reports))
        found = ModelEvaluated(
            *self.where, federated=True, clients=len(self.reports), examples=examples, metrics=means
        )
        return found if means else None


class Evaluations:
    """The evaluations of a run."""

    def __init__(self, central: CentralEvaluation | None, fraction: float, seed: int) -> None:
        """`central`: evaluates a version on central data. `fraction`: of the nodes, which evaluate."""
        self._central, self._fraction, self._seed = central, fraction, seed
        self.metrics: dict[str, float] = {}
        """The metrics of the last evaluation; if there are central ones, of the last of them."""
        self.version = -1
        """The last version of which an evaluation has begun."""
        self._round: _Round | None = None

    @property
    def waiting(self) -> bool:
        """Whether nodes are evaluating."""
        return self._round is not None

    def begin(self, where: RunPosition, arrays: Arrays, nodes: Sequence[int]) -> list[Event]:
        """Evaluate a version centrally, and begin to ask nodes. An evaluation by nodes that is not complete
        ends with the reports that it has."""
        self.version, events = where.version, []
        if self._central is not None:
            metrics = self._central(where.version, arrays)
            if metrics:
                events += self._found(ModelEvaluated(*where, metrics=dict(metrics)))
        if self._fraction > 0:
            events += self._close()
            random = np.random.default_rng(key(self._seed, "flower evaluation", where.version))
            count = math.ceil(self._fraction * len(nodes))
            chosen = {nodes[index] for index in random.permutation(len(nodes))[:count]}
            self._round = _Round(where, arrays, chosen)
        return events

    def orders(self, free: Sequence[int], seconds: float) -> list[Order]:
        """Return the orders for free nodes that are to be asked."""
        one = self._round
        if one is None:
            return []
        chosen = [node for node in free if node in one.wanted]
        one.wanted -= set(chosen)
        one.asked |= set(chosen)
        version = one.where.version
        return [
            Order("evaluate", node, version, one.arrays, {"server-round": version}, seconds=seconds)
            for node in chosen
        ]

    def answered(self, node: int, reply: Reply) -> None:
        """Note what a node has found, or why it has found nothing."""
        if reply.error:
            log.warning("node %d did not evaluate: %s", node, reply.error)
        if self._round is None or node not in self._round.asked:
            return  # of an earlier version
        self._round.asked.discard(node)
        metrics = {name: value for name, value in reply.metrics.items() if name != EXAMPLES}
        examples = reply.metrics.get(EXAMPLES, 1.0)
        if metrics and examples > 0:
            self._round.reports.append((examples, metrics))

    def settle(self, connected: set[int], busy: Iterable[int] = ()) -> list[Event]:
        """Return the evaluation if it is complete. Nodes that have gone are not waited for, and busy ones not
        asked any more."""
        one = self._round
        if one is None:
            return []
        one.wanted = (one.wanted & connected) - set(busy)
        one.asked &= connected
        return [] if one.wanted or one.asked else self._close()

    def _close(self) -> list[Event]:
        one, self._round = self._round, None
        event = None if one is None else one.event()
        return [] if event is None else self._found(event)

    def _found(self, event: ModelEvaluated) -> list[Event]:
        numbers = {name: float(v) for name, v in event.metrics.items() if isinstance(v, int | float)}
        log.info("version %d: %s", event.version, ", ".join(f"{n} {v:.4g}" for n, v in numbers.items()))
        if self._central is None or not event.federated:
            self.metrics = numbers
        return [event]


def weighted_means(reports: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the weighted mean of each metric over the reports that have a finite value of it.

    >>> weighted_means([(1, {"loss": 4.0}), (3, {"loss": 0.0, "accuracy": 0.5})])
    {'loss': 1.0, 'accuracy': 0.5}
    """
    sums: dict[str, tuple[float, float]] = {}
    for weight, metrics in reports:
        for name, value in metrics.items():
            if math.isfinite(value) and name not in RESERVED:
                mass, total = sums.get(name, (0.0, 0.0))
                sums[name] = mass + weight, total + weight * value
    return {name: total / mass for name, (mass, total) in sums.items() if mass > 0}
