"""The gradient of a local step that has several minibatches."""

from __future__ import annotations

import torch
from torch import Tensor

from tardigrad.core.precision import at_least_float32
from tardigrad.learning.examples import Features, mapped
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient, Loss


class AccumulatedGradient:
    """Computes the gradient of many examples, `batch_size` at a time, and stores it in `flat.gradient`.

    Minibatches weigh by their number of examples. If the loss is a mean over examples, the result is the
    gradient of all of them together, to rounding.
    """

    def __init__(self, gradient: Gradient, flat: FlatModule, batch_size: int) -> None:
        self._gradient, self._flat, self._batch_size = gradient, flat, batch_size
        self._sum = torch.zeros_like(at_least_float32(flat.gradient))

    def __call__(self, features: Features, labels: Tensor) -> Loss:
        """Return the mean loss, and store the gradient in `flat.gradient`."""
        if len(labels) <= self._batch_size:
            return self._gradient(features, labels)
        total = self._sum.zero_()
        mean: Loss = 0.0
        for first in range(0, len(labels), self._batch_size):
            part = slice(first, first + self._batch_size)
            share = len(labels[part]) / len(labels)
            mean += share * self._gradient(mapped(features, lambda tensor: tensor[part]), labels[part])  # noqa: B023
            total.add_(self._flat.gradient, alpha=share)
        self._flat.gradient.copy_(total)
        return mean
