"""One of several classes."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tardigrad.learning.heads.class_weights import Weighted
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs, misfit


class MultiClass(Weighted, Head):
    """One of several classes: cross entropy and accuracy."""

    task: ClassVar[LearningTask | None] = "multiclass"
    kind: Literal["multiclass"] = "multiclass"

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.dim() != labels.dim() + 1:
            raise misfit(outputs, labels, "a score for every class; char_lstm has that with predict = 'next'")
        if self.class_weights is None:
            return F.cross_entropy(outputs, labels.long())
        return F.cross_entropy(outputs, labels.long(), self.weights(outputs))

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, examples, mass = 0.0, 0, 0, 0.0
        for scores, labels in outputs:
            weights = self.weights(scores)
            own = len(labels) if weights is None else float(weights[labels.long()].sum())
            loss += own * float(self.loss(scores, labels))
            right += int((scores.argmax(dim=1) == labels).sum())
            examples += len(labels)
            mass += own
        return {"loss": loss / mass, "accuracy": right / examples}

    def constant(self, labels: Tensor) -> Tensor:
        counts = torch.bincount(labels.flatten().long()).double()
        return torch.log(counts.clamp(min=1e-6) / counts.sum())

    @property
    def baseline(self) -> str:
        return "always the commonest class"
