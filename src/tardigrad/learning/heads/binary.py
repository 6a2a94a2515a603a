"""Yes or no."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tardigrad.learning.heads.class_weights import Weighted
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs, misfit


class Binary(Weighted, Head):
    """Yes or no, labels 1 and 0: one output an example (its logit), cross entropy and accuracy."""

    task: ClassVar[LearningTask | None] = "binary"
    kind: Literal["binary"] = "binary"

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.numel() != labels.numel():
            raise misfit(outputs, labels, "one score an example")
        logits, truth = outputs.flatten(), labels.flatten().to(outputs.dtype)
        weights = self._weight(logits, truth)
        if weights is None:
            return F.binary_cross_entropy_with_logits(logits, truth)
        return F.binary_cross_entropy_with_logits(logits, truth, weights, reduction="sum") / weights.sum()

    def _weight(self, logits: Tensor, truth: Tensor) -> Tensor | None:
        """Return the weight of each example, or None if all weigh the same."""
        weights = self.weights(logits)
        return None if weights is None else torch.where(truth > 0, weights[1], weights[0])

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, examples, mass = 0.0, 0, 0, 0.0
        for scores, labels in outputs:
            weights = self._weight(scores.flatten(), labels.flatten())
            own = len(labels) if weights is None else float(weights.sum())
            loss += own * float(self.loss(scores, labels))
            right += int(((scores.flatten() > 0) == (labels.flatten() > 0)).sum())
            examples += len(labels)
            mass += own
        return {"loss": loss / mass, "accuracy": right / examples}

    def width(self, classes: int, labels: Tensor) -> int:
        return 1

    def constant(self, labels: Tensor) -> Tensor:
        share = (labels > 0).double().mean().clamp(1e-6, 1 - 1e-6)
        return torch.logit(share)

    @property
    def baseline(self) -> str:
        return "always the commoner answer"
