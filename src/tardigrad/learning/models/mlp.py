"""Fully connected networks."""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import nn

from tardigrad.learning.models.architecture import Architecture, Shape


class MLP(Architecture):
    """Fully connected layers with ReLU.

    With `hidden = [100]` on 28 x 28 images and 10 classes it has 79,510 parameters.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = (64,)
    """Width of each hidden layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        widths = [torch.Size(shape).numel(), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in itertools.pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


class FedACMLP(Architecture):
    """FedAC's network for EMNIST letters: two hidden layers of 100 with ReLU.

    The paper gives no widths, only a count of 92,337 parameters. On 28 x 28 images that is
    784 * 100 + 100 + 100 * 100 + 100 + 100 * 37 + 37: two layers of 100 and 37 outputs, which is the number
    of labels that TensorFlow Datasets lists for EMNIST letters. With 26 outputs (letters) there are 91,226
    parameters, with 47 (balanced) 93,347. With 47 outputs, the only widths that give 92,337 are 34 and 800.
    """

    kind: Literal["fedac_mlp"] = "fedac_mlp"
    hidden: tuple[PositiveInt, ...] = (100, 100)
    """Width of each hidden layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return MLP(hidden=self.hidden).build(shape, classes)
