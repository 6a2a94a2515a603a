"""Task heads: the loss that clients minimise and the metrics that people read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor

Outputs = Iterable[tuple[Tensor, Tensor]]
"""A model's outputs and the labels, batch after batch."""


class Head(ABC):
    """A loss and the metrics that go with it."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a minibatch."""

    @abstractmethod
    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics over a whole evaluation set: always `loss`, and `accuracy` where it has a meaning."""


class MultiClass(Head):
    """One of several classes: cross entropy and accuracy."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels)

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, examples = 0.0, 0, 0
        for scores, labels in outputs:
            loss += float(F.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(dim=1) == labels).sum())
            examples += len(labels)
        return {"loss": loss / examples, "accuracy": right / examples}
