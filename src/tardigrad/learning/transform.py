"""Transforms: what happens to raw examples on their way into the model."""

from __future__ import annotations

import torch
from torch import Tensor


class Transform:
    """Examples as they are. Data sets that are held as bytes, or augmented in training, override this."""

    def train(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """A minibatch for training; all randomness from the trip's own generator."""
        del generator
        return self.evaluate(features)

    def evaluate(self, features: Tensor) -> Tensor:
        """A batch for evaluation: no randomness."""
        return features

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an example after the transform, from that before."""
        return shape
