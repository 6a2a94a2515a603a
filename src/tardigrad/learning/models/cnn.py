"""The papers' convolutional networks. None of them has BatchNorm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt
from torch import nn

from tardigrad.learning.models.architecture import Architecture, Shape, image
from tardigrad.learning.models.building_blocks import group_norm
from tardigrad.learning.models.mlp import MLP


class FedACCNN(Architecture):
    """FedAC's CNN: two 5 x 5 convolutions, each with 2 x 2 max pooling, and three fully connected layers.

    The paper says 32 and 64 channels and counts 797,963 parameters. With 64 and 64 channels and layers of
    384, 192 and 10 it has 797,962 on CIFAR-10: 4,864 + 102,464 + 614,784 + 73,920 + 1,930. That network is
    in wide use, and the paper's count is one too many. With 32 and 64 channels it would have 744,330.
    """

    kind: Literal["fedac_cnn"] = "fedac_cnn"
    channels: tuple[PositiveInt, PositiveInt] = (64, 64)
    """Channels of the two convolutions."""
    hidden: tuple[PositiveInt, ...] = (384, 192)
    """Width of each hidden fully connected layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = image(shape, self.kind, smallest=16)
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [nn.Conv2d(given, channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = channels, (height - 4) // 2, (width - 4) // 2
        return nn.Sequential(*layers, MLP(hidden=self.hidden).build((given, height, width), classes))


class FedBuffCNN(Architecture):
    """FedBuff's CNN for CelebA and CIFAR-10: four 3 x 3 convolutions of 32 channels (stride 1, padding 2),
    each with GroupNorm and 2 x 2 max pooling, then dropout 0.1 and one fully connected layer.

    31,786 parameters on 32 x 32 colour images with 10 classes. The paper does not give the number of groups;
    the authors' simulator has one group for each channel. It shares one GroupNorm among the four
    convolutions; here each convolution has its own, like the BatchNorms of LEAF's network.
    """

    kind: Literal["fedbuff_cnn"] = "fedbuff_cnn"
    channels: PositiveInt = 32
    """Channels of every convolution."""
    groups: PositiveInt = 32
    """Number of groups of every GroupNorm, lowered if it does not divide the channels."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability before the last layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = image(shape, self.kind, smallest=8)
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(given, self.channels, 3, padding=2), group_norm(self.groups, self.channels)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = self.channels, (height + 2) // 2, (width + 2) // 2
        layers += [nn.Flatten(), nn.Dropout(self.dropout), nn.Linear(given * height * width, classes)]
        return nn.Sequential(*layers)


class FedAsyncCNN(Architecture):
    """FedAsync's CNN: four 3 x 3 convolutions (two of 64, two of 128 channels), max pooling after each
    pair, and one fully connected layer; made for 24 x 24 crops.

    306,250 parameters on 24 x 24 colour images with 10 classes. The authors' program has more than the
    paper's text: BatchNorm after every convolution, dropout and a hidden layer. The closest network without
    BatchNorm is `groups = 32, dropout = 0.25, hidden = [512]`.
    """

    kind: Literal["fedasync_cnn"] = "fedasync_cnn"
    channels: PositiveInt = 64
    """Channels of the first pair; the second has twice as many."""
    hidden: tuple[PositiveInt, ...] = ()
    """Width of each hidden fully connected layer (default: no hidden layers)."""
    groups: PositiveInt | None = None
    """Number of groups of a GroupNorm after every convolution (default: no GroupNorm)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability after every pair and every hidden layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = image(shape, self.kind, smallest=4)
        layers: list[nn.Module] = []
        for channels in (self.channels, 2 * self.channels):
            for _ in range(2):
                layers += [nn.Conv2d(given, channels, 3, padding=1), nn.ReLU()]
                layers += [] if self.groups is None else [group_norm(self.groups, channels)]
                given = channels
            layers += [nn.MaxPool2d(2), nn.Dropout(self.dropout)]
            height, width = height // 2, width // 2
        layers.append(nn.Flatten())
        wide = given * height * width
        for narrow in self.hidden:
            layers += [nn.Linear(wide, narrow), nn.ReLU(), nn.Dropout(self.dropout)]
            wide = narrow
        return nn.Sequential(*layers, nn.Linear(wide, classes))


class MasFLCNN(Architecture):
    """A small CNN for Fashion-MNIST, for MasFL's experiments: two 5 x 5 convolutions of 16 and 32 channels
    (padding 2), each with 2 x 2 max pooling, and one fully connected layer.

    28,938 parameters on 28 x 28 images with 10 classes. MasFL's slides give no sizes; these are our choice.
    """

    kind: Literal["masfl_cnn"] = "masfl_cnn"
    channels: tuple[PositiveInt, PositiveInt] = (16, 32)
    """Channels of the two convolutions."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, height, width = image(shape, self.kind, smallest=4)
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [nn.Conv2d(given, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            given, height, width = channels, height // 2, width // 2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(given * height * width, classes))
