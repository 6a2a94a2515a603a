"""Image transforms for whole minibatches: crops, flips and normalisation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError
from tardigrad.learning.transform import Transform

Shape = tuple[int, ...]


class _Step(Setting):
    """A transform of images, which are bytes of the shape examples x channels x height x width."""

    @abstractmethod
    def train(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Transform images for training, with separate random draws for each image."""

    @abstractmethod
    def evaluate(self, images: Tensor) -> Tensor:
        """Transform images for evaluation, without randomness."""

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of an image after this step."""
        return shape


class CentreCrop(_Step):
    """Crops the centre of each image."""

    kind: Literal["centre_crop"] = "centre_crop"
    side: PositiveInt = 24
    """Height and width of the crop."""

    def train(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.evaluate(images)

    def evaluate(self, images: Tensor) -> Tensor:
        return _centre_crop(images, self.side)

    def shape(self, shape: Shape) -> Shape:
        return _cropped_shape(shape, self.side, self.kind)


class RandomCrop(_Step):
    """Crops a random part of each image in training, and the centre in evaluation."""

    kind: Literal["random_crop"] = "random_crop"
    side: PositiveInt = 32
    """Height and width of the crop."""
    padding: NonNegativeInt = 0
    """Black pixels added on each side before an image is cropped, in training."""

    def train(self, images: Tensor, generator: torch.Generator) -> Tensor:
        if self.padding:
            images = F.pad(images, [self.padding] * 4)
        count, _, height, width = images.shape
        top = torch.randint(height - self.side + 1, (count,), generator=generator)
        left = torch.randint(width - self.side + 1, (count,), generator=generator)
        if images.device.type != "cpu":
            return _crop_at(images, top.to(images.device), left.to(images.device), self.side)
        # A view of all possible crops. NumPy copies bytes from it three times as fast as torch.
        crops = np.lib.stride_tricks.sliding_window_view(images.numpy(), (self.side, self.side), axis=(2, 3))
        return torch.from_numpy(crops[np.arange(count), :, top.numpy(), left.numpy()])

    def evaluate(self, images: Tensor) -> Tensor:
        return _centre_crop(images, self.side)

    def shape(self, shape: Shape) -> Shape:
        return _cropped_shape(shape, self.side, self.kind)


class Flip(_Step):
    """Mirrors each image, left to right, with probability one half; in training only."""

    kind: Literal["flip"] = "flip"

    def train(self, images: Tensor, generator: torch.Generator) -> Tensor:
        chosen = (torch.rand(len(images), generator=generator) < 0.5).nonzero()[:, 0].to(images.device)
        return images.index_copy(0, chosen, images.index_select(0, chosen).flip(-1))

    def evaluate(self, images: Tensor) -> Tensor:
        return images


ImageStep = Annotated[CentreCrop | RandomCrop | Flip, Field(discriminator="kind"), by_name]


class Images(Transform):
    """Applies the steps in order, then subtracts each channel's mean and divides by its deviation.

    >>> transform = Images([RandomCrop(side=32, padding=4), Flip()], mean=[0.5], deviation=[0.5])
    >>> transform.shape((1, 32, 32))
    (1, 32, 32)
    """

    def __init__(
        self, steps: Sequence[ImageStep] = (), *, mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        self.steps = tuple(steps)
        # (x / 255 - mean) / deviation, as one multiplication and one addition
        spread = torch.tensor(deviation, dtype=torch.float64)
        self._scale = (1 / (255 * spread)).float()[:, None, None]
        self._shift = (-torch.tensor(mean, dtype=torch.float64) / spread).float()[:, None, None]

    def train(self, features: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            features = step.train(features, generator)
        return self._normalised(features)

    def evaluate(self, features: Tensor) -> Tensor:
        for step in self.steps:
            features = step.evaluate(features)
        return self._normalised(features)

    def shape(self, shape: Shape) -> Shape:
        for step in self.steps:
            shape = step.shape(shape)
        return shape

    def _normalised(self, images: Tensor) -> Tensor:
        if self._scale.device != images.device:
            self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        numbers = images.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        return numbers.mul_(self._scale).add_(self._shift)


def _centre_crop(images: Tensor, side: int) -> Tensor:
    top, left = ((length - side) // 2 for length in images.shape[2:])
    return images[:, :, top : top + side, left : left + side]


def _crop_at(images: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Crop each image at its own corner."""
    count, channels, _, _ = images.shape
    along = torch.arange(side, device=images.device)
    each, channel = (torch.arange(n, device=images.device) for n in (count, channels))
    rows, columns = top[:, None] + along, left[:, None] + along
    return images[
        each[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]


def _cropped_shape(shape: Shape, side: int, kind: str) -> Shape:
    """Return the shape of an image after a crop; raise a ConfigError if the image is too small."""
    channels, height, width = shape
    if side > min(height, width):
        raise ConfigError(
            f"data.transforms: {kind} keeps {side} x {side} pixels, but the images have {height} x {width}"
        )
    return channels, side, side
