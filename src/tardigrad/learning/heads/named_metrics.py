"""Metrics by name, computed over a whole evaluation set with scikit-learn, only if they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tardigrad.core.metric import top_k
from tardigrad.errors import ConfigError
from tardigrad.learning.heads.next_token import NextToken
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs

BY_TASK: dict[LearningTask, tuple[str, ...]] = {
    "binary": ("balanced_accuracy", "f1", "auc", "average_precision"),
    "multiclass": ("balanced_accuracy", "f1", "auc", "average_precision", "perplexity", "top5"),
    "multilabel": ("f1", "auc", "average_precision"),
    "regression": ("r2",),
    "sequence": ("top5",),
}
"""The metrics that can be computed for each task besides those of its head; top5 stands for any number."""


class UndefinedMetric(Exception):
    """A metric has no value on these examples; the text says why."""


def can_compute(name: str, head: Head) -> bool:
    """Return whether a metric that is not the head's own can be computed for its task."""
    general = "top5" if top_k(name) is not None else name
    return head.task is not None and name not in head.names and general in BY_TASK[head.task]


def check_names(names: Iterable[str], head: Head, key: str) -> None:
    """Raise a ConfigError that begins with `key` if the head gives no metric of one of these names."""
    offered = () if head.task is None else BY_TASK[head.task]
    for name in names:
        if name not in head.names and not can_compute(name, head):
            known = ", ".join(dict.fromkeys((*head.names, *offered)))
            raise ConfigError(f"{key}: the head {type(head).__name__} has no metric {name!r}; it has {known}")


class NamedMetrics:
    """Metrics by name: watches the outputs on their way to the head, and computes what the head does not.

    >>> from tardigrad.learning.heads.regression import Regression
    >>> metrics = NamedMetrics(["r2"], Regression())
    >>> for _ in metrics.watch([(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))]): pass
    >>> metrics.result(), metrics.undefined
    ({'r2': 0.5}, {})
    """

    def __init__(self, names: Iterable[str], head: Head) -> None:
        self._head = head
        self._names = [name for name in dict.fromkeys(names) if name not in head.names]
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._hits = dict.fromkeys(self._names, 0)
        self._tokens = 0
        self.undefined: dict[str, str] = {}
        """The metrics that `result` leaves out, and why."""

    def watch(self, outputs: Outputs) -> Outputs:
        """Yield the outputs and labels unchanged, and keep what the metrics need of them."""
        for scores, labels in outputs:
            yield scores, labels
            if isinstance(self._head, NextToken):  # all scores of long sequences would not fit into memory
                self._count_tokens(scores, self._head.scored(labels), self._head.pad)
            elif self._names:
                self._scores.append(scores.detach().double().cpu())
                self._labels.append(labels.detach().cpu())

    def _count_tokens(self, scores: Tensor, wanted: Tensor, pad: int) -> None:
        counts = wanted != pad
        self._tokens += int(counts.sum())
        for name in self._names:
            self._hits[name] += int(_in_top(scores[counts], wanted[counts], top_k(name) or 1).sum())

    def result(self) -> dict[str, float]:
        """Return the metrics; those that have no value on these examples are in `undefined`."""
        if isinstance(self._head, NextToken):
            return {name: self._hits[name] / max(1, self._tokens) for name in self._names}
        found: dict[str, float] = {}
        if not self._names or not self._scores:
            return found
        scores, labels = torch.cat(self._scores), torch.cat(self._labels)
        if not torch.isfinite(scores).all():
            return found  # the model has diverged, which its loss shows
        for name in self._names:
            try:
                found[name] = _compute(name, self._head, scores, labels)
            except UndefinedMetric as reason:
                self.undefined[name] = str(reason)
        return found


def _compute(name: str, head: Head, scores: Tensor, labels: Tensor) -> float:
    k = top_k(name)
    if k is not None:
        return float(_in_top(scores, labels, k).double().mean())
    if head.task == "regression":
        return _r2(scores.reshape(labels.shape).numpy(), labels.double().numpy())
    if name == "perplexity":
        return math.exp(min(float(F.cross_entropy(scores, labels.long())), 700.0))
    truth, chances = _columns(head.task, scores, labels)
    return _CLASSIFICATION[name](truth, chances, head.task)


def _in_top(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether each label is among the k classes with the highest scores."""
    best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
    return (best == labels.long().unsqueeze(-1)).any(dim=-1)


def _columns(task: LearningTask | None, scores: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return a column for each class: whether an example is of it, and the model's probability of that."""
    if task == "multiclass":
        return F.one_hot(labels.long(), scores.shape[1]).numpy() > 0, scores.softmax(dim=1).numpy()
    examples = len(labels)
    truth = (labels > 0).reshape(examples, -1).numpy()
    return truth, scores.reshape(examples, -1).sigmoid().numpy()


def _decisions(chances: np.ndarray, task: LearningTask | None) -> np.ndarray:
    """Return the classes that the model decides for, as columns."""
    if task == "multiclass":
        chosen: np.ndarray = np.arange(chances.shape[1]) == chances.argmax(axis=1)[:, None]
        return chosen
    return chances > 0.5


def _balanced_accuracy(truth: np.ndarray, chances: np.ndarray, task: LearningTask | None) -> float:
    """Return the mean over the classes that occur of the share of their examples that are recognised."""
    right = _decisions(chances, task)
    if task == "binary":  # no is a class, too
        truth, right = np.hstack([~truth, truth]), np.hstack([~right, right])
    occurs = truth.any(axis=0)
    return float(((truth & right).sum(axis=0)[occurs] / truth.sum(axis=0)[occurs]).mean())


def _f1(truth: np.ndarray, chances: np.ndarray, task: LearningTask | None) -> float:
    from sklearn.metrics import f1_score

    occurs = truth.any(axis=0)
    if not occurs.any():
        raise UndefinedMetric("no example is of the class that is looked for")
    columns = zip(truth.T[occurs], _decisions(chances, task).T[occurs])
    return float(np.mean([f1_score(own, decided, zero_division=0) for own, decided in columns]))


def _auc(truth: np.ndarray, chances: np.ndarray, task: LearningTask | None) -> float:
    from sklearn.metrics import roc_auc_score

    both = truth.any(axis=0) & ~truth.all(axis=0)
    if not both.any():
        raise UndefinedMetric("all examples are of one class")
    return float(roc_auc_score(truth[:, both], chances[:, both], average="macro"))


def _average_precision(truth: np.ndarray, chances: np.ndarray, task: LearningTask | None) -> float:
    from sklearn.metrics import average_precision_score

    occurs = truth.any(axis=0)
    if not occurs.any():
        raise UndefinedMetric("no example is of the class that is looked for")
    return float(average_precision_score(truth[:, occurs], chances[:, occurs], average="macro"))


def _r2(found: np.ndarray, truth: np.ndarray) -> float:
    from sklearn.metrics import r2_score

    if len(truth) < 2 or (truth == truth[0]).reshape(len(truth), -1).all(axis=0).any():
        raise UndefinedMetric("a target has the same value in all examples")
    return float(r2_score(truth, found))


_CLASSIFICATION: dict[str, Callable[[np.ndarray, np.ndarray, LearningTask | None], float]] = {
    "balanced_accuracy": _balanced_accuracy,
    "f1": _f1,
    "auc": _auc,
    "average_precision": _average_precision,
}
