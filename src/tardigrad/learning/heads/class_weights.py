"""Class weights: rare classes count for more in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError

ClassWeights = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | Literal["balanced"] | None


class Weighted(Setting):
    """The setting of heads whose classes can have weights."""

    class_weights: ClassWeights = None
    """How much an example of each class counts in the loss, such as [1, 10], or "balanced": in inverse
    proportion to how often each occurs (in a simulation). For multilabel: how much a yes counts."""

    def weights(self, like: Tensor) -> Tensor | None:
        """Return the weights as a tensor on the same device and of the same type, or None."""
        if self.class_weights is None:
            return None
        if self.class_weights == "balanced":
            raise ConfigError(
                "head.class_weights: 'balanced' needs the clients' label counts, which only a simulation "
                "without privacy knows; give numbers"
            )
        return torch.tensor(self.class_weights, dtype=like.dtype, device=like.device)

    def check_classes(self, classes: int) -> None:
        """Raise a ConfigError unless there is a weight for each class."""
        if isinstance(self.class_weights, tuple) and len(self.class_weights) != classes:
            raise ConfigError(
                f"head.class_weights: there are {len(self.class_weights)} weights, but {classes} classes; "
                "give one for each"
            )


def balanced(counts: Sequence[float], examples: float) -> tuple[float, ...]:
    """Return weights in inverse proportion to the counts of the classes; a class that is absent counts 1.

    >>> balanced([90, 10], examples=100)
    (0.5555555555555556, 5.0)
    """
    return tuple(examples / (len(counts) * count) if count else 1.0 for count in counts)
