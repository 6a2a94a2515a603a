"""Any number of classes at once."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tardigrad.learning.heads.class_weights import Weighted
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs, misfit


class MultiLabel(Weighted, Head):
    """Any number of classes at once: labels of 1 and 0 for every class, and one logit for each.

    `macro_ap` is the average precision of each class that occurs, averaged over these classes (0 if none
    does). It is the main metric, because the share of right decisions (`label_accuracy`) is near 1 for a
    model that always says no, if labels are rare.
    """

    names: ClassVar[tuple[str, ...]] = ("loss", "macro_ap", "label_accuracy")
    main: ClassVar[str] = "macro_ap"
    task: ClassVar[LearningTask | None] = "multilabel"
    kind: Literal["multilabel"] = "multilabel"

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape != labels.shape:
            raise misfit(outputs, labels, "one score a class and example")
        truth = labels.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, truth, pos_weight=self.weights(outputs))

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right = 0.0, 0
        scores, labels = [], []  # precision at a score depends on all examples with a higher one
        for logits, truth in outputs:
            loss += truth.numel() * float(self.loss(logits, truth))
            right += int(((logits > 0) == (truth > 0)).sum())
            kept = logits.float() if logits.dtype == torch.bfloat16 else logits  # unknown to NumPy
            scores.append(kept.detach().cpu().numpy())
            labels.append(truth.cpu().numpy() > 0)
        every_score, every_label = np.concatenate(scores), np.concatenate(labels)
        precisions = [
            average_precision(score, label)
            for score, label in zip(every_score.T, every_label.T)
            if label.any()
        ]
        macro = float(np.mean(precisions)) if precisions else 0.0
        decisions = every_label.size
        return {"loss": loss / decisions, "macro_ap": macro, "label_accuracy": right / decisions}

    def width(self, classes: int, labels: Tensor) -> int:
        return labels.shape[1] if labels.dim() == 2 else classes

    def constant(self, labels: Tensor) -> Tensor:
        shares = (labels > 0).double().mean(dim=0).clamp(1e-6, 1 - 1e-6)
        return torch.logit(shares)

    @property
    def baseline(self) -> str:
        return "the same answer for every example"


def average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean over true examples of the precision among those that score at least as high.

    >>> average_precision(np.array([0.9, 0.8, 0.1]), np.array([True, False, True]))
    0.8333333333333333
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # the last of each run of equal scores
    found = np.cumsum(labels[order])[ends]
    return float((np.diff(found, prepend=0) * found / (ends + 1)).sum() / found[-1])
