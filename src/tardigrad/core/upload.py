"""Tasks, uploads, and the weighted sum of a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Vectors = dict[str, Tensor]
"""Named flat vectors: a broadcast (always with `model`), an upload, a client's memory."""


class TypedVector(NamedTuple):
    """The name, the type and the length of a vector that travels.

    >>> bytes_of((TypedVector("delta/codes", "int8", 1000), TypedVector("delta/scales", "float32", 1)))
    1004
    """

    name: str
    dtype: str
    """One of `DTYPES`."""
    length: int


DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
        torch.float16, torch.float64,
    )
}  # fmt: skip
"""The types of numbers in an upload, by name. The last two only travel in a simulation."""


def bytes_of(layout: Iterable[TypedVector]) -> int:
    """Return how many bytes the numbers of vectors with this layout have together."""
    return sum(DTYPES[vector.dtype].itemsize * vector.length for vector in layout)


def size_in_bytes(vectors: Vectors) -> int:
    """Return how many bytes the numbers of the vectors have together."""
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())


@dataclass(frozen=True, slots=True)
class Task:
    """The data that a client downloads for one trip."""

    trip: int
    """The number of the trip."""
    client: int | str
    """The client: a number in a simulation, a name on a server."""
    version: int
    """The version that the client downloads."""
    vectors: Vectors
    """The broadcast. These tensors must not be changed, because other clients train from them too."""
    staleness: float | None = None
    """The staleness that its upload will have, or None if it is not known beforehand."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The data that a client sends back."""

    vectors: Vectors
    """What the rule's `finish` returned, such as `delta`."""
    examples: int
    """How many examples the client has."""
    steps: int
    """How many local steps it made."""
    loss: float
    """The mean training loss of the trip; it is only reported."""


class Member(NamedTuple):
    """One upload in the buffer, without its values."""

    start_version: int
    """The version that the client started from."""
    staleness: int
    """How many versions were made between the start of the trip and its arrival."""
    weight: float
    """The factor of the upload in the weighted sum: its staleness discount times its mass."""
    mass: float
    """What it adds to the divisor: 1, or its number of examples."""


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A full buffer as a sum-only algorithm sees it: the weighted sum, and no single upload.

    >>> import torch
    >>> member = Member(start_version=0, staleness=0, weight=1.0, mass=1.0)
    >>> WeightedSum({"delta": torch.tensor([4.0])}, (member, member), version=0, divisor=2.0).mean()
    tensor([2.])
    """

    sums: Mapping[str, Tensor]
    """For each named vector, the sum of weight times vector."""
    members: tuple[Member, ...]
    """The uploads without their values, in the order of arrival."""
    version: int
    """The version before the step of this buffer."""
    divisor: float
    """The sum of the masses (K if clients weigh the same). It is not the sum of the weights, which would
    cancel the staleness discount."""

    def mean(self, name: str = "delta") -> Tensor:
        """Return the weighted sum divided by the divisor."""
        return self.sums[name] / self.divisor

    def change_of_mean(self, name: str, mass: float) -> Tensor:
        """Return the change of the mean over all clients of what each remembers, if the uploads contain the
        changes of their clients: the sum over the buffer divided by `mass`, the weight of all clients
        together. The algorithm must declare the vector as undiscounted."""
        return (self.divisor / mass) * self.mean(name)

    def by_version(self, window: int) -> list[float]:
        """Return, for each of the versions version - window, ..., version, the weight divided by the divisor
        of all uploads that started from it."""
        row = [0.0] * (window + 1)
        for member in self.members:
            row[-1 - member.staleness] += member.weight / self.divisor
        return row


@dataclass(frozen=True, slots=True)
class Received:
    """One upload in the buffer with its values, for algorithms that need individual uploads."""

    upload: Upload
    """What the client sent."""
    member: Member
    """Its version, staleness and weight."""
    start: Tensor
    """The model that the client started from."""
    client: int | str = -1
    """The client that sent it: a number in a simulation, a name on a server."""
