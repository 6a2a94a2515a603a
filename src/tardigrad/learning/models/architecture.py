"""The base class of models that a config can name."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from torch import Tensor, nn

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError

Shape = tuple[int, ...]
MOST_LAYERS = 1000


class Architecture(Setting):
    """A model that a config can name: settings that build a module for examples of one shape."""

    start: Path | None = None
    """A file with the initial values (a state dict, as safetensors or saved by torch), or the folder of a run
    whose model is taken. Default: random values from the seed."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the module for examples of this shape, with initial values from torch's global generator."""

    def build_with(self, vectors: Tensor | None, shape: Shape, classes: int) -> nn.Module:
        """Build the module with initial word vectors, if the model uses them."""
        return self.build(shape, classes)


def image(shape: Shape, kind: str, smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width; raise a ConfigError unless examples are large enough images."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"model.kind {kind!r} needs images of channels x height x width, at least {smallest} pixels "
            f"a side; the examples have the shape {tuple(shape)}. For other data use model.kind 'mlp'"
        )
    return shape[0], shape[1], shape[2]


def sequence(shape: Shape, kind: str) -> int:
    """Return the length of a sequence; raise a ConfigError unless examples are sequences."""
    if len(shape) != 1:
        raise ConfigError(
            f"model.kind {kind!r} needs sequences of tokens, of the shape (length,); "
            f"the examples have the shape {tuple(shape)}"
        )
    return shape[0]
