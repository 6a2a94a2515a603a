"""Models that a config can name. Any torch.nn.Module can be given in Python instead."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn

from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError

Shape = tuple[int, ...]


class _Model(Setting):
    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """The module, for examples of this shape. Draws its start from torch's global generator."""


class MLP(_Model):
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


class FedACCNN(_Model):
    """FedAC's CNN: two 5 x 5 convolutions, each with 2 x 2 max pooling, and three fully connected layers.

    The paper says 32 and 64 channels and counts 797,963 parameters; 64 and 64 channels with layers of
    384, 192 and 10 have 797,962 on CIFAR-10, and no reading with 32 channels comes near.
    """

    kind: Literal["fedac_cnn"] = "fedac_cnn"
    channels: tuple[PositiveInt, PositiveInt] = (64, 64)
    """Channels of the two convolutions."""
    hidden: tuple[PositiveInt, ...] = (384, 192)
    """Width of each hidden fully connected layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = _image(shape, self.kind, smallest=16)
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [nn.Conv2d(given, channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = channels, (height - 4) // 2, (width - 4) // 2
        return nn.Sequential(*layers, MLP(hidden=self.hidden).build((given, height, width), classes))


class FedBuffCNN(_Model):
    """FedBuff's CNN: four 3 x 3 convolutions of 32 channels with GroupNorm, 2 x 2 max pooling and
    dropout 0.1, and one fully connected layer."""

    kind: Literal["fedbuff_cnn"] = "fedbuff_cnn"
    channels: PositiveInt = 32
    """Channels of every convolution."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of activations that is dropped before the last layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = _image(shape, self.kind, smallest=8)
        groups = next(g for g in (8, 4, 2, 1) if self.channels % g == 0)
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(given, self.channels, 3, padding=2), nn.GroupNorm(groups, self.channels)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = self.channels, (height + 2) // 2, (width + 2) // 2
        layers += [nn.Flatten(), nn.Dropout(self.dropout), nn.Linear(given * height * width, classes)]
        return nn.Sequential(*layers)


class FedAsyncCNN(_Model):
    """FedAsync's CNN: four 3 x 3 convolutions (two of 64, two of 128 channels), max pooling after each
    pair, and one fully connected layer; made for 24 x 24 crops."""

    kind: Literal["fedasync_cnn"] = "fedasync_cnn"
    channels: PositiveInt = 64
    """Channels of the first pair; the second has twice as many."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = _image(shape, self.kind, smallest=4)
        layers: list[nn.Module] = []
        for channels in (self.channels, 2 * self.channels):
            layers += [nn.Conv2d(given, channels, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = channels, height // 2, width // 2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(given * height * width, classes))


def _image(shape: Shape, kind: str, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"model.kind {kind!r} needs images of channels x height x width, at least {smallest} pixels "
            f"a side; the examples have the shape {tuple(shape)}. For other data use model.kind 'mlp'"
        )
    return shape[0], shape[1], shape[2]


Model = Annotated[MLP | FedACCNN | FedBuffCNN | FedAsyncCNN, Field(discriminator="kind"), by_name]
