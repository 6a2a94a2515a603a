"""What travels: a task to the client, an upload back, and the sum that a buffer becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Vectors = dict[str, Tensor]
"""Named flat vectors: a broadcast (always with `model`), an upload, a client's memory."""


@dataclass(frozen=True, slots=True)
class Task:
    """One trip's work: what the client downloads."""

    trip: int
    client: int | str
    version: int
    vectors: Vectors
    """The broadcast. Nobody changes these tensors: other clients train from them too."""
    staleness: float | None = None
    """What its staleness will be, where that is known or expected beforehand."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What a client sends back."""

    vectors: Vectors
    examples: int
    steps: int
    loss: float
    """Mean training loss of the trip, for people to look at."""


class Member(NamedTuple):
    """One upload in the buffer, as bookkeeping knows it: no values."""

    start_version: int
    staleness: int
    weight: float
    mass: float


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A full buffer as a sum-only algorithm sees it: the weighted sum, and nobody's own upload."""

    sums: Mapping[str, Tensor]
    """For each named vector, the sum of weight times vector."""
    members: tuple[Member, ...]
    version: int
    """The version that this buffer moves."""
    divisor: float
    """The sum of the masses (K where clients weigh the same). Never the sum of the weights: that would
    cancel the staleness discount."""

    def mean(self, name: str = "delta") -> Tensor:
        """The weighted sum over the divisor."""
        return self.sums[name] / self.divisor

    def change_of_mean(self, name: str, mass: float) -> Tensor:
        """How the mean over all clients of what each remembers changes, where the uploads say how much
        their clients' changed: the sum over the buffer divided by `mass`, what all clients together weigh.
        The vector must be one that the algorithm names as undiscounted."""
        return (self.divisor / mass) * self.mean(name)

    def by_version(self, window: int) -> list[float]:
        """The weight over the divisor of all uploads together that started from each of the versions
        version - window, ..., version."""
        row = [0.0] * (window + 1)
        for member in self.members:
            row[-1 - member.staleness] += member.weight / self.divisor
        return row


@dataclass(frozen=True, slots=True)
class Received:
    """One upload in the buffer, with its values: for algorithms that need individual uploads."""

    upload: Upload
    member: Member
    start: Tensor
    """The model that the client started from."""
