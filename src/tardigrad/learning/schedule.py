"""Schedules of the client's learning rate, by the version that a trip starts from."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting, by_name


class _Schedule(Setting):
    @abstractmethod
    def factor(self, version: int) -> float:
        """What the learning rate is multiplied with."""


class ConstantRate(_Schedule):
    """The learning rate stays."""

    kind: Literal["constant"] = "constant"

    def factor(self, version: int) -> float:
        return 1.0


class StepDecay(_Schedule):
    """Multiplied by `factor_at_each` once for every version in `at` that was reached (FedAsync's
    experiments halve it at 800).

    >>> StepDecay(at=(800,)).factor(799), StepDecay(at=(800,)).factor(800)
    (1.0, 0.5)
    """

    kind: Literal["step_decay"] = "step_decay"
    at: tuple[PositiveInt, ...] = (800,)
    """Versions at which it falls."""
    factor_at_each: PositiveFloat = 0.5
    """What it is multiplied with there."""

    def factor(self, version: int) -> float:
        return self.factor_at_each ** sum(version >= at for at in self.at)


class Cosine(_Schedule):
    """Falls along half a cosine from 1 to `floor` over `steps` versions.

    >>> Cosine(steps=10).factor(0), Cosine(steps=10).factor(5), Cosine(steps=10).factor(99)
    (1.0, 0.5, 0.0)
    """

    kind: Literal["cosine"] = "cosine"
    steps: PositiveInt = 1000
    """Versions until it is down."""
    floor: float = Field(0.0, ge=0, le=1)
    """Where it ends, as a share of the start."""

    def factor(self, version: int) -> float:
        progress = min(version / self.steps, 1.0)
        return self.floor + (1 - self.floor) * round((1 + math.cos(math.pi * progress)) / 2, 15)


Schedule = Annotated[ConstantRate | StepDecay | Cosine, Field(discriminator="kind"), by_name]
