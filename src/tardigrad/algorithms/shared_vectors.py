"""The downloads of clients where they are not exactly the algorithm's broadcast."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.draws import key
from tardigrad.core.upload import TypedVector, Vectors, bytes_of
from tardigrad.errors import RunError


class BroadcastRule(Protocol):
    """How the shared vectors follow the algorithm's."""

    @property
    def sends_differences(self) -> bool:
        """Whether a client that has a version needs only what was sent since."""

    def whole(self, name: str, length: int) -> TypedVector:
        """Return how a vector travels to a client that has no version."""

    def difference(self, name: str, length: int) -> tuple[TypedVector, ...]:
        """Return how the change of a vector from one version to the next travels."""

    def first(self, vector: Tensor) -> Tensor:
        """Return what clients have of a vector of the first version."""

    def follow(
        self, name: str, shared: Tensor, vector: Tensor, random: np.random.Generator
    ) -> tuple[Tensor, Vectors]:
        """Return what clients have of a vector after the next version, and what is sent if it is a
        difference."""


class SharedVectors:
    """The vectors that the server and its clients share, version by version."""

    def __init__(self, rule: BroadcastRule, seed: int) -> None:
        """`seed`: of the run; random numbers depend on it and on the version."""
        self._rule, self._seed = rule, seed
        self._version = -1
        self.vectors: Vectors = {}
        """The vectors of the newest version. They are never changed in place."""
        self.difference: Vectors = {}
        """The encoded difference from the version before to the newest; empty if versions travel whole."""

    def at(self, version: int, own: Vectors) -> Vectors:
        """Return the vectors of this version, in which the algorithm's own vectors are `own`. Versions must
        be asked for in order, each once or more."""
        if version == self._version:
            return self.vectors
        if self._version < 0:
            self.vectors = {name: self._rule.first(vector) for name, vector in own.items()}
        else:
            assert version == self._version + 1, "no version is left out"
            self._follow(version, own)
        self._version = version
        return self.vectors

    def _follow(self, version: int, own: Vectors) -> None:
        random = np.random.Generator(np.random.SFC64(key(self._seed, "broadcast", version)))
        shared, self.difference = {}, {}
        for name, vector in own.items():
            if not torch.isfinite(vector).all():
                raise RunError(
                    f"the model is not finite at version {version}, so that it cannot be encoded for the "
                    "clients: training has diverged; lower local.lr or algorithm.lr"
                )
            shared[name], parts = self._rule.follow(name, self.vectors[name], vector, random)
            self.difference |= parts
        self.vectors = shared

    def layout(self) -> tuple[TypedVector, ...]:
        """Return how whole versions travel."""
        return tuple(self._rule.whole(name, vector.numel()) for name, vector in self.vectors.items())

    def download_sizes(self) -> DownloadSizes:
        """Return the sizes of downloads."""
        whole = bytes_of(self.layout())
        if not self._rule.sends_differences:
            return DownloadSizes(whole)
        parts = (self._rule.difference(name, vector.numel()) for name, vector in self.vectors.items())
        return DownloadSizes(whole, sum(map(bytes_of, parts)))

    def restore(self, version: int, vectors: Vectors) -> None:
        """Continue from the vectors of a version."""
        self._version, self.vectors, self.difference = version, vectors, {}
