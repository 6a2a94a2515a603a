"""What every model is: a setting that builds a module for examples of one shape."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError

Shape = tuple[int, ...]


class Architecture(Setting):
    """A model that a config can name."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """The module, for examples of this shape. Draws its start from torch's global generator."""

    def build_with(self, vectors: Tensor | None, shape: Shape, classes: int) -> nn.Module:
        """The same, with word vectors to start from where the model has use for them."""
        return self.build(shape, classes)


def image(shape: Shape, kind: str, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width, or a ConfigError if the examples are not images that are large enough."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"model.kind {kind!r} needs images of channels x height x width, at least {smallest} pixels "
            f"a side; the examples have the shape {tuple(shape)}. For other data use model.kind 'mlp'"
        )
    return shape[0], shape[1], shape[2]


def sequence(shape: Shape, kind: str) -> int:
    """The length of a sequence, or a ConfigError if the examples are not sequences."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.kind {kind!r} needs sequences of tokens, of the shape (length,); "
            f"the examples have the shape {tuple(shape)}"
        )
    return shape[0]
