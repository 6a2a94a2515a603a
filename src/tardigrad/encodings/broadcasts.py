"""Broadcast encodings: how the vectors of a version travel to the clients.

Clients train from the vectors that they have received, not from those of the algorithm. So the encoding
decides which vectors the server and its clients share, and the algorithm's own state stays exact.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tardigrad.core.setting import Setting, by_name
from tardigrad.core.upload import TypedVector, Vectors
from tardigrad.encodings.bfloat16 import BFloat16
from tardigrad.encodings.encoding import Encoding
from tardigrad.encodings.int4 import Int4
from tardigrad.encodings.int8 import Int8
from tardigrad.encodings.randomk import RandomK
from tardigrad.encodings.sign import Sign
from tardigrad.encodings.topk import TopK

DifferenceEncoding = Annotated[
    BFloat16 | Int8 | Int4 | Sign | TopK | RandomK, Field(discriminator="kind"), by_name
]


class BroadcastEncoding(Setting):
    """The base of all broadcast encodings."""

    @property
    def sends_differences(self) -> bool:
        """Whether a client that has a version needs only what was sent since."""
        return False

    @abstractmethod
    def whole(self, name: str, length: int) -> TypedVector:
        """Return how a vector travels to a client that has no version."""

    def difference(self, name: str, length: int) -> tuple[TypedVector, ...]:
        """Return how the change of a vector from one version to the next travels."""
        return ()

    def first(self, vector: Tensor) -> Tensor:
        """Return what clients have of a vector of the first version."""
        return vector

    @abstractmethod
    def follow(
        self, name: str, shared: Tensor, vector: Tensor, random: np.random.Generator
    ) -> tuple[Tensor, Vectors]:
        """Return what clients have of a vector after the next version, and what is sent if it is a
        difference. `shared`: what they have now; `vector`: the algorithm's own."""


class Float32Broadcast(BroadcastEncoding):
    """Versions travel as they are. This is the default."""

    kind: Literal["float32"] = "float32"

    def whole(self, name: str, length: int) -> TypedVector:
        return TypedVector(name, "float32", length)

    def follow(
        self, name: str, shared: Tensor, vector: Tensor, random: np.random.Generator
    ) -> tuple[Tensor, Vectors]:
        return vector, {}


class BFloat16Broadcast(BroadcastEncoding):
    """Versions travel as bfloat16, in half of the bytes, rounded to the nearest.

    Clients train in float32 from the rounded numbers. The error of a number x is at most |x| / 256.
    """

    kind: Literal["bfloat16"] = "bfloat16"

    def whole(self, name: str, length: int) -> TypedVector:
        return TypedVector(name, "bfloat16", length)

    def first(self, vector: Tensor) -> Tensor:
        return vector.to(torch.bfloat16).to(vector.dtype)

    def follow(
        self, name: str, shared: Tensor, vector: Tensor, random: np.random.Generator
    ) -> tuple[Tensor, Vectors]:
        return self.first(vector), {}


class DifferenceBroadcast(BroadcastEncoding):
    """The server sends encoded differences (QAFeL's hidden state).

    Server and clients share a vector that follows the model: with each version the server encodes the
    difference between the model and the shared vector, and everybody adds what was decoded to the shared
    vector. What one difference loses is a part of the next. A client that has a version downloads the
    differences since then, and the shared vector if it has none or if that is smaller.
    """

    kind: Literal["differences"] = "differences"
    encoding: DifferenceEncoding = Int8()
    """How a difference is encoded. What one loses is always a part of the next, so `error_feedback`, which is
    for uploads, has no effect here."""

    @property
    def sends_differences(self) -> bool:
        return True

    def whole(self, name: str, length: int) -> TypedVector:
        return TypedVector(name, "float32", length)

    def difference(self, name: str, length: int) -> tuple[TypedVector, ...]:
        return self._lossy.layout(name, length)

    def follow(
        self, name: str, shared: Tensor, vector: Tensor, random: np.random.Generator
    ) -> tuple[Tensor, Vectors]:
        change = (vector - shared).cpu().float()
        parts = self._lossy.encode(name, change, random)
        return self.apply(name, shared, parts), parts

    def apply(self, name: str, shared: Tensor, parts: Vectors) -> Tensor:
        """Return what a client has of a vector after it has received a difference."""
        return shared + self._lossy.decode(name, parts, len(shared)).to(shared.device, shared.dtype)

    @property
    def _lossy(self) -> Encoding:
        """The encoding as it is used where the next message makes up for what is lost."""
        return self.encoding.feeding_back()


AnyBroadcast = Annotated[
    Float32Broadcast | BFloat16Broadcast | DifferenceBroadcast, Field(discriminator="kind"), by_name
]
