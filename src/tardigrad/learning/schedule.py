"""Schedules of the client's learning rate, as functions of the version that a trip starts from."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting, by_name


class _Schedule(Setting):
    """A factor of the learning rate for each version."""

    @abstractmethod
    def factor(self, version: int) -> float:
        """Return the factor of the learning rate for trips that start from this version."""


class ConstantRate(_Schedule):
    """The learning rate is the same at every version."""

    kind: Literal["constant"] = "constant"

    def factor(self, version: int) -> float:
        return 1.0


class StepDecay(_Schedule):
    """The learning rate is multiplied by `factor_at_each` at every version in `at` (FedAsync's experiments
    halve it at 800).

    >>> StepDecay(at=(800,)).factor(799), StepDecay(at=(800,)).factor(800)
    (1.0, 0.5)
    """

    kind: Literal["step_decay"] = "step_decay"
    at: tuple[PositiveInt, ...] = (800,)
    """Versions at which the learning rate is multiplied."""
    factor_at_each: PositiveFloat = 0.5
    """The factor at each of these versions."""

    def factor(self, version: int) -> float:
        return self.factor_at_each ** sum(version >= at for at in self.at)


class Cosine(_Schedule):
    """The learning rate falls along half a cosine from 1 to `floor` over `steps` versions.

    >>> Cosine(steps=10).factor(0), Cosine(steps=10).factor(5), Cosine(steps=10).factor(99)
    (1.0, 0.5, 0.0)
    """

    kind: Literal["cosine"] = "cosine"
    steps: PositiveInt = 1000
    """Number of versions until `floor` is reached."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a share of the initial one."""

    def factor(self, version: int) -> float:
        progress = min(version / self.steps, 1.0)
        return self.floor + (1 - self.floor) * round((1 + math.cos(math.pi * progress)) / 2, 15)


Schedule = Annotated[ConstantRate | StepDecay | Cosine, Field(discriminator="kind"), by_name]
