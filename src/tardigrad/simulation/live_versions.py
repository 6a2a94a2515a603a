"""Live versions: those that a trip may still start from, with the vectors that clients download."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tardigrad.core.upload import Vectors
from tardigrad.simulation.executors import Executor


class LiveVersions(Mapping[int, Vectors]):
    """The broadcasts of the live versions, by version.

    It counts the trips that need each version: those that are under way, planned or in the buffer. A version
    is discarded when no trip needs it and no client can start from it any more, so memory grows with the
    number of live versions, not with the number of trips or clients.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._broadcasts: dict[int, Vectors] = {}
        self._needed: Counter[int] = Counter()  # by version, how many trips need it
        self._unneeded: set[int] = set()  # the versions whose count is 0

    def __getitem__(self, version: int) -> Vectors:
        return self._broadcasts[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._broadcasts)

    def __len__(self) -> int:
        return len(self._broadcasts)

    def publish(self, version: int, vectors: Vectors) -> None:
        """Make a version available to the executor, whether or not a trip needs it already."""
        self._broadcasts[version] = self._executor.publish(version, vectors)
        self.need(version, 0)

    def need(self, version: int, trips: int = 1) -> None:
        """Note that so many more trips need this version, or, if `trips` is negative, so many fewer."""
        self._needed[version] += trips
        if self._needed[version]:
            self._unneeded.discard(version)
        else:
            self._unneeded.add(version)

    def discard_before(self, version: int) -> None:
        """Discard the versions before this one that no trip needs."""
        for old in [v for v in self._unneeded if v < version and v in self._broadcasts]:
            self._executor.withdraw(old)
            del self._broadcasts[old], self._needed[old]
            self._unneeded.discard(old)

    def restore(self, broadcasts: Mapping[int, Vectors], needed: Iterable[int]) -> None:
        """Replace all versions by these; `needed` has one entry for each trip that needs a version."""
        for version in self._broadcasts:
            self._executor.withdraw(version)
        self._broadcasts, self._needed, self._unneeded = {}, Counter(needed), set()
        for version, vectors in broadcasts.items():
            self.publish(version, vectors)
