"""Metrics by name: whether more or less of one is better, and how it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]

WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "label_accuracy": "label accuracy",
    "f1": "F1",
    "auc": "AUC",
    "average_precision": "average precision",
    "macro_ap": "macro average precision",
    "r2": "R2",
    "loss": "loss",
    "mae": "MAE",
    "rmse": "RMSE",
    "perplexity": "perplexity",
    "attack_success": "attack success",
}
"""The metrics that are known by name, and how they are written. `top5`, `top10`, ... are known too."""
LOWER = frozenset({"loss", "mae", "rmse", "perplexity"})
"""Known metrics of which less is better."""
_AT_MOST_1 = frozenset(WORDS) - LOWER
_PERCENT = frozenset({"accuracy", "balanced_accuracy", "label_accuracy", "macro_ap", "attack_success"})
_TOP = re.compile(r"top([1-9][0-9]{0,3})")


def top_k(name: str) -> int | None:
    """Return k of a metric such as "top5", or None for other names.

    >>> top_k("top5"), top_k("accuracy")
    (5, None)
    """
    found = _TOP.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class Metric:
    """A metric's name and direction, as targets, tables and charts need them.

    >>> rmse = Metric.named("rmse")
    >>> rmse.reached(2.5, 3.0), rmse.best([4.0, 2.5]), rmse.shown(2.5), str(rmse)
    (True, 2.5, '2.5', 'RMSE')
    >>> Metric().shown(0.935), Metric().short_of(0.87, 0.9)
    ('93.5 %', '3.0 points short')
    """

    name: str = "accuracy"
    lower_is_better: bool = False

    @staticmethod
    def named(name: str, better: Better | None = None) -> Metric:
        """Return the metric of this name. `better`: for names that are not known; default: "higher"."""
        return Metric(name, name in LOWER if better is None else better == "lower")

    def __str__(self) -> str:
        top = top_k(self.name)
        if top is not None:
            return f"top-{top} accuracy"
        return WORDS.get(self.name, self.name.replace("_", " "))

    @property
    def percent(self) -> bool:
        """Whether it is a share that is written in percent."""
        return self.name in _PERCENT or top_k(self.name) is not None

    @property
    def most(self) -> float:
        """The largest value that it can have.

        >>> Metric.named("auc").most, Metric.named("rmse").most
        (1.0, inf)
        """
        known = self.name in _AT_MOST_1 or top_k(self.name) is not None
        return 1.0 if known else math.inf

    @property
    def better(self) -> Better:
        """Which direction is better."""
        return "lower" if self.lower_is_better else "higher"

    def reached(self, value: float, target: float) -> bool:
        """Return whether a value is as good as the target, or better."""
        return value <= target if self.lower_is_better else value >= target

    def best(self, values: Iterable[float], default: float | None = None) -> float:
        """Return the best of some values; `default` if there are none."""
        found = list(values)
        if not found and default is not None:
            return default
        return min(found) if self.lower_is_better else max(found)

    def gain(self, before: float, after: float) -> float:
        """Return by how much a value has become better; negative if it has become worse."""
        return before - after if self.lower_is_better else after - before

    def shown(self, value: float) -> str:
        """Return a value as text, in percent if it is a share."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"

    def short_of(self, value: float, target: float) -> str:
        """Return how far a value that missed a target is from it, in words."""
        gap = abs(target - value)
        return f"{100 * gap:.1f} points short" if self.percent else f"{gap:.3g} short"


ACCURACY = Metric()
"""The metric that a run is judged by, unless its head or its config names another."""
