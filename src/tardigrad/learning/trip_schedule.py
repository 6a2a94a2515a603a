"""Schedules of the learning rate within one trip, as functions of the local step."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from tardigrad.core.setting import Setting, by_name


class _TripSchedule(Setting):
    """A factor of the learning rate for each local step of a trip: a warm-up, and then the schedule's own."""

    warm_up: NonNegativeInt = 0
    """Number of local steps in which the learning rate rises: to 1 / warm_up in the first, and to its full
    value in the last of them."""

    @property
    def is_flat(self) -> bool:
        """Whether the factor is 1 for all steps."""
        return False

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate for local step `step` (from 0 on) of `steps`."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return self._after((step - self.warm_up) / (steps - self.warm_up))

    @abstractmethod
    def _after(self, progress: float) -> float:
        """Return the factor when a share of `progress` (0 or more, below 1) of the other steps is done."""


class ConstantInTrip(_TripSchedule):
    """All local steps after the warm-up have the same learning rate.

    >>> [ConstantInTrip(warm_up=2).factor(step, 4) for step in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """

    kind: Literal["constant"] = "constant"

    @property
    def is_flat(self) -> bool:
        return self.warm_up == 0

    def _after(self, progress: float) -> float:
        return 1.0


class LinearInTrip(_TripSchedule):
    """The learning rate falls along a line, which would reach `floor` after the last local step.

    >>> [LinearInTrip().factor(step, 4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    kind: Literal["linear"] = "linear"
    floor: float = Field(default=0.0, ge=0, le=1)
    """The final value, as a share of the learning rate."""

    def _after(self, progress: float) -> float:
        return self.floor + (1 - self.floor) * (1 - progress)


class CosineInTrip(_TripSchedule):
    """The learning rate falls along half a cosine, which would reach `floor` after the last local step.

    >>> [CosineInTrip().factor(step, 2) for step in range(2)]
    [1.0, 0.5]
    """

    kind: Literal["cosine"] = "cosine"
    floor: float = Field(default=0.0, ge=0, le=1)
    """The final value, as a share of the learning rate."""

    def _after(self, progress: float) -> float:
        return self.floor + (1 - self.floor) * round((1 + math.cos(math.pi * progress)) / 2, 15)


TripSchedule = Annotated[ConstantInTrip | LinearInTrip | CosineInTrip, Field(discriminator="kind"), by_name]
