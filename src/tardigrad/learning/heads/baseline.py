"""The baseline of a task: a model that ignores its input, evaluated as a model is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict

import torch
from torch import Tensor

from tardigrad.core.metric import top_k
from tardigrad.learning.heads.named_metrics import NamedMetrics
from tardigrad.learning.heads.next_token import NextToken
from tardigrad.learning.heads.task_head import Head

BATCH = 256
LEAST = -30.0
"""The logarithm of the probability of a class that nobody has."""


class Baseline(TypedDict):
    """The metrics of the best constant prediction, as summary.json has them."""

    says: str
    """The prediction in words, such as "always the commonest class"."""
    of: str
    """The labels that this was learned from."""
    metrics: dict[str, float]


def baseline(
    head: Head, learned: Tensor, of: str, test: Tensor, outputs: int, names: Iterable[str] = ()
) -> Baseline | None:
    """Return the baseline of a head, or None if it has none.

    `learned`: the labels that the constant is learned from. `of`: whose they are. `test`: the labels that it
    is evaluated on. `outputs`: the model's number of outputs. `names`: metrics besides those of the head.

    >>> from tardigrad.learning.heads import MultiClass
    >>> labels = torch.tensor([0, 1, 1, 1])
    >>> found = baseline(MultiClass(), labels, "the clients' labels", labels, outputs=2)
    >>> found["says"], found["metrics"]["accuracy"]
    ('always the commonest class', 0.75)
    """
    constant = head.constant(learned)
    if constant is None or len(test) == 0:
        return None
    if head.task in ("multiclass", "sequence"):  # classes that nobody has
        missing = max(0, outputs - len(constant))
        constant = torch.cat([constant, constant.new_full((missing,), LEAST)])
    if isinstance(head, NextToken):
        return {"says": head.baseline, "of": of, "metrics": _of_tokens(head, constant, test, names)}
    named = NamedMetrics(names, head)
    batches = ((constant.expand(len(labels), *constant.shape), labels) for labels in test.split(BATCH))
    found = head.metrics(named.watch(batches))
    return {"says": head.baseline, "of": of, "metrics": found | named.result()}


def _of_tokens(head: NextToken, constant: Tensor, test: Tensor, names: Iterable[str]) -> dict[str, float]:
    """Return the metrics of constant outputs at every position, without a copy of them for each."""
    wanted = head.scored(test)
    wanted = wanted[wanted != head.pad]
    if not len(wanted):
        return {}
    loss = -float(constant.log_softmax(dim=0)[wanted].mean())
    ranks = constant.argsort(descending=True).argsort()[wanted]
    found = {"loss": loss, "accuracy": float((ranks == 0).double().mean()), "perplexity": math.exp(loss)}
    return found | {name: float((ranks < (top_k(name) or 1)).double().mean()) for name in names}
