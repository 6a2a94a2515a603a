"""ResNet-18 with GroupNorm in place of BatchNorm."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from tardigrad.learning.models.architecture import Architecture, Shape, image
from tardigrad.learning.models.building_blocks import group_norm


class ResNet18(Architecture):
    """ResNet-18 with GroupNorm, as Momentum Approximation uses it for FLAIR; its initial weights are random.

    11,185,233 parameters with 17 outputs. The paper follows FLAIR's benchmark, which also has runs that start
    from ImageNet weights. Those weights belong to the network with BatchNorm, so they are not supported here.
    """

    kind: Literal["resnet18"] = "resnet18"
    width: PositiveInt = 64
    """Channels of the first of four stages; each other stage has twice as many as the one before."""
    groups: PositiveInt = 32
    """Number of groups of every GroupNorm, lowered if it does not divide the channels."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        given, _, _ = image(shape, self.kind, smallest=32)
        width, groups = self.width, self.groups
        layers: list[nn.Module] = [
            nn.Conv2d(given, width, 7, stride=2, padding=3, bias=False),
            group_norm(groups, width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            Block(width, width, 1, groups),
            Block(width, width, 1, groups),
        ]
        for _ in range(3):
            layers += [Block(width, 2 * width, 2, groups), Block(2 * width, 2 * width, 1, groups)]
            width *= 2
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
        module = nn.Sequential(*layers)
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        return module


class Block(nn.Module):
    """A residual block: two 3 x 3 convolutions, added to the input.

    If the shape changes, the input goes through a 1 x 1 convolution first.
    """

    def __init__(self, given: int, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(given, channels, 3, stride=stride, padding=1, bias=False),
            group_norm(groups, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            group_norm(groups, channels),
        )
        self.keep: nn.Module = nn.Identity()
        if stride != 1 or given != channels:
            self.keep = nn.Sequential(
                nn.Conv2d(given, channels, 1, stride=stride, bias=False), group_norm(groups, channels)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.change(x) + self.keep(x))
