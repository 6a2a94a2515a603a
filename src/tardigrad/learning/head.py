"""Task heads: the loss that clients minimise and the metrics that people read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tardigrad.errors import ConfigError

Outputs = Iterable[tuple[Tensor, Tensor]]
"""A model's outputs and the labels, batch after batch."""


class Head(ABC):
    """A loss and the metrics that go with it. Labels may be held as integers of any size."""

    names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    """The metrics that `metrics` gives. A server takes no others from its clients."""
    labels_for_module: ClassVar[str | None] = None
    """The keyword with which the module is given the labels; None if it is not given them."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a minibatch."""

    @abstractmethod
    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics over a whole evaluation set: always `loss`, and `accuracy`, which stops, targets and
        pictures are about."""


class MultiClass(Head):
    """One of several classes: cross entropy and accuracy."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.dim() != labels.dim() + 1:
            raise _misfit(
                outputs, labels, "a score for every class; char_lstm has that with predict = 'next'"
            )
        return F.cross_entropy(outputs, labels.long())

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, examples = 0.0, 0, 0
        for scores, labels in outputs:
            loss += len(labels) * float(self.loss(scores, labels))
            right += int((scores.argmax(dim=1) == labels).sum())
            examples += len(labels)
        return {"loss": loss / examples, "accuracy": right / examples}


class Binary(Head):
    """Yes or no, labels 1 and 0: one output an example (its logit), cross entropy and accuracy."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.numel() != labels.numel():
            raise _misfit(outputs, labels, "one score an example")
        return F.binary_cross_entropy_with_logits(outputs.flatten(), labels.flatten().to(outputs.dtype))

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, examples = 0.0, 0, 0
        for scores, labels in outputs:
            loss += len(labels) * float(self.loss(scores, labels))
            right += int(((scores.flatten() > 0) == (labels.flatten() > 0)).sum())
            examples += len(labels)
        return {"loss": loss / examples, "accuracy": right / examples}


class MultiLabel(Head):
    """Any number of classes at once: labels of 1 and 0 for every class, and one logit for each.

    `macro_ap` is the average precision of each class that occurs, averaged over these classes (0 if none
    does). `accuracy` repeats it: it is what is to be reached, while the share of right decisions
    (`label_accuracy`) is near 1 for a model that always says no, if labels are rare.
    """

    names: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "macro_ap", "label_accuracy")

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape != labels.shape:
            raise _misfit(outputs, labels, "one score a class and example")
        return F.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype))

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right = 0.0, 0
        scores, labels = [], []  # precision at a score depends on all examples with a higher one
        for logits, truth in outputs:
            loss += truth.numel() * float(self.loss(logits, truth))
            right += int(((logits > 0) == (truth > 0)).sum())
            scores.append(logits.detach().cpu().numpy())
            labels.append(truth.cpu().numpy() > 0)
        every_score, every_label = np.concatenate(scores), np.concatenate(labels)
        precisions = [
            average_precision(score, label)
            for score, label in zip(every_score.T, every_label.T)
            if label.any()
        ]
        macro = float(np.mean(precisions)) if precisions else 0.0
        decisions = every_label.size
        return {
            "loss": loss / decisions,
            "accuracy": macro,
            "macro_ap": macro,
            "label_accuracy": right / decisions,
        }


def average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean over true examples of the precision among those that score at least as high.

    >>> average_precision(np.array([0.9, 0.8, 0.1]), np.array([True, False, True]))
    0.8333333333333333
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # the last of each run of equal scores
    found = np.cumsum(labels[order])[ends]
    return float((np.diff(found, prepend=0) * found / (ends + 1)).sum() / found[-1])


class NextToken(Head):
    """The next token at every position: outputs of examples x length x vocabulary, labels of examples x
    length. Cross entropy, accuracy of the likeliest token and perplexity, each over what counts.

    `pad` never counts, nor does a token of `ignore`. Tokens of `unscored` are trained on but left out of
    the metrics: with the out-of-vocabulary and end-of-sentence tokens, this is the accuracy that the
    papers give for StackOverflow.
    """

    names: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "perplexity")

    def __init__(self, pad: int, ignore: Iterable[int] = (), unscored: Iterable[int] = ()) -> None:
        self.pad, self.ignore = pad, tuple(ignore)
        self.unscored = (*self.ignore, *unscored)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        wanted = self._without(labels, self.ignore)
        return self._summed(outputs, wanted) / (wanted != self.pad).sum().clamp(min=1)

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, tokens = 0.0, 0, 0
        for scores, labels in outputs:
            wanted = self._without(labels, self.unscored)
            counts = wanted != self.pad
            loss += float(self._summed(scores, wanted))
            right += int(((scores.argmax(dim=-1) == wanted) & counts).sum())
            tokens += int(counts.sum())
        mean = loss / max(1, tokens)
        return {
            "loss": mean,
            "accuracy": right / max(1, tokens),
            "perplexity": math.exp(min(mean, 700.0)),  # beyond, a float overflows
        }

    def _without(self, labels: Tensor, left_out: tuple[int, ...]) -> Tensor:
        """The labels, with padding in the place of those that are left out."""
        labels = labels.long()
        for token in left_out:
            labels = labels.masked_fill(labels == token, self.pad)
        return labels

    def _summed(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape[:-1] != labels.shape:
            raise _misfit(
                outputs, labels, "scores for every position; char_lstm has those with predict = 'every'"
            )
        # no mean: that of nothing is not a number, and a minibatch may be all padding
        return F.cross_entropy(
            outputs.flatten(0, -2), labels.flatten(), ignore_index=self.pad, reduction="sum"
        )


BUILT_IN: tuple[type[Head], ...] = (MultiClass, Binary, MultiLabel, NextToken)


def _misfit(outputs: Tensor, labels: Tensor, wanted: str) -> ConfigError:
    return ConfigError(
        f"model: it gives outputs of the shape {tuple(outputs.shape)} for labels of the shape "
        f"{tuple(labels.shape)}; this task needs {wanted}"
    )
