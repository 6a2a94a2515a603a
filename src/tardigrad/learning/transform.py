"""Transforms: convert stored examples to the input of a model."""

from __future__ import annotations

import torch
from torch import Tensor


class Transform:
    """Returns examples unchanged; subclasses convert bytes to numbers, or augment examples in training."""

    def train(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Transform a minibatch for training; all randomness comes from the trip's own generator."""
        del generator
        return self.evaluate(features)

    def evaluate(self, features: Tensor) -> Tensor:
        """Transform a batch for evaluation, without randomness."""
        return features

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an example after the transform, given its shape before."""
        return shape
