"""Task heads: the loss that clients minimise and the metrics that people read."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor


class Head(ABC):
    """A loss and the metrics that go with it."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a minibatch."""

    @abstractmethod
    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Metrics over a whole evaluation set; always `loss` and `accuracy`."""


class MultiClass(Head):
    """One of several classes: cross entropy and accuracy."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {
            "loss": float(F.cross_entropy(outputs, labels)),
            "accuracy": float((outputs.argmax(dim=1) == labels).double().mean()),
        }
