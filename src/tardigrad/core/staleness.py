"""Staleness laws: the weight of an upload whose trip started `staleness` versions ago.

Every law gives 1 for a fresh upload (staleness 0) and at most 1 for others. Formulas from "Asynchronous
Federated Optimization", section 4, with fresh counted as 0; the cosine gate is that of "Cosine-Gated
Adam-Decay".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from tardigrad.core.setting import Setting, by_name


class _Law(Setting):
    @abstractmethod
    def __call__(self, staleness: int) -> float:
        """Return the weight of an upload of this staleness, in [0, 1]."""


class Constant(_Law):
    """s = 1: late uploads count as much as fresh ones.

    >>> Constant()(7)
    1.0
    """

    kind: Literal["constant"] = "constant"

    def __call__(self, staleness: int) -> float:
        return 1.0


class Linear(_Law):
    """s = 1 / (a staleness + 1).

    >>> Linear(a=1.0)(3)
    0.25
    """

    kind: Literal["linear"] = "linear"
    a: PositiveFloat = 1.0
    """How fast the weight falls."""

    def __call__(self, staleness: int) -> float:
        return 1.0 / (self.a * staleness + 1.0)


class Polynomial(_Law):
    """s = (staleness + 1)^-a; the papers take a = 0.5.

    >>> Polynomial(a=0.5)(3)
    0.5
    """

    kind: Literal["polynomial"] = "polynomial"
    a: PositiveFloat = 0.5
    """The exponent."""

    def __call__(self, staleness: int) -> float:
        return (staleness + 1.0) ** -self.a


class Exponential(_Law):
    """s = exp(-a staleness).

    >>> round(Exponential(a=1.0)(2), 4)
    0.1353
    """

    kind: Literal["exponential"] = "exponential"
    a: PositiveFloat = 0.5
    """The rate."""

    def __call__(self, staleness: int) -> float:
        return math.exp(-self.a * staleness)


class Hinge(_Law):
    """s = 1 up to staleness b, then 1 / (a (staleness - b) + 1).

    >>> Hinge(a=10.0, b=4.0)(4), Hinge(a=10.0, b=4.0)(5)
    (1.0, 0.09090909090909091)
    """

    kind: Literal["hinge"] = "hinge"
    a: PositiveFloat = 10.0
    """How fast the weight falls past the hinge."""
    b: NonNegativeFloat = 4.0
    """The greatest staleness at which the weight is 1."""

    def __call__(self, staleness: int) -> float:
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


class CosineGate(_Law):
    """s = exp(-a staleness) (1 + cos(pi staleness / cutoff)) / 2, and 0 from the cutoff on: the weight falls
    smoothly to nothing.

    >>> law = CosineGate(a=0.1, cutoff=8)
    >>> law(0), round(law(4), 4), law(8), law(20)
    (1.0, 0.3352, 0.0, 0.0)
    """

    kind: Literal["cosine_gate"] = "cosine_gate"
    a: NonNegativeFloat = 0.1
    """The rate of the exponential."""
    cutoff: PositiveFloat = 16.0
    """The staleness from which on uploads have no weight."""

    def __call__(self, staleness: int) -> float:
        if staleness >= self.cutoff:
            return 0.0
        return math.exp(-self.a * staleness) * (1 + math.cos(math.pi * staleness / self.cutoff)) / 2


@dataclass(frozen=True, slots=True)
class RoundedLaw:
    """A law whose weights are multiples of 1 / denominator, and at least one of these.

    >>> RoundedLaw(Polynomial(a=0.5), denominator=4)(1)  # 0.707...
    0.75
    """

    law: _Law
    denominator: int

    def __call__(self, staleness: int) -> float:
        """Return the weight of an upload of this staleness, in (0, 1]."""
        return max(1, round(self.law(staleness) * self.denominator)) / self.denominator


StalenessLaw = Annotated[
    Constant | Linear | Polynomial | Exponential | Hinge | CosineGate, Field(discriminator="kind"), by_name
]
