"""The versions that nodes train from."""

from __future__ import annotations

from collections.abc import Iterable

from tardigrad.core.upload import Vectors
from tardigrad.flower_grid.named_arrays import Arrays, ArraysModule


class SentVersions:
    """The newest version, which is sent, and older ones as long as somebody trains from them."""

    def __init__(self, module: ArraysModule) -> None:
        self._module = module
        self._vectors: dict[int, Vectors] = {}
        self.arrays: Arrays = {}
        """The arrays of the newest version."""

    def __getitem__(self, version: int) -> Vectors:
        return self._vectors[version]

    def publish(self, version: int, vectors: Vectors, needed: Iterable[int]) -> None:
        """Add the newest version, and forget those that are not needed."""
        kept = {version, *needed}
        self._vectors = {v: own for v, own in (self._vectors | {version: vectors}).items() if v in kept}
        self.arrays = self._module.arrays(vectors["model"])
