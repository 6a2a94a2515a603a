"""How many bytes clients download."""

from __future__ import annotations

from tardigrad.core.participation import ClientId

MOST_DIFFERENCES = 1000
"""A client that has missed more versions downloads the whole: the list of what is in a download has to fit
into one message."""


class DownloadSizes:
    """The number of bytes that a client downloads for each of its trips.

    A version that travels whole always has the same size. If the server sends differences between versions, a
    client needs those since the version that it has, or the whole if it has none, if that is smaller or if it
    has missed more than `MOST_DIFFERENCES`.

    >>> sizes = DownloadSizes(whole=400, difference=100)
    >>> [sizes.take("ann", version) for version in (3, 3, 5, 20)]
    [400, 0, 200, 400]
    """

    def __init__(self, whole: int, difference: int | None = None) -> None:
        """`difference`: the size of what leads from a version to the next; None if versions travel whole."""
        self.whole, self.difference = whole, difference
        self._versions: dict[ClientId, int] = {}

    def take(self, client: ClientId, version: int) -> int:
        """Return the size of this client's download of a version, which it has from now on."""
        if self.difference is None:
            return self.whole
        had = self._versions.get(client)
        self._versions[client] = version
        if had is None or not had <= version <= had + MOST_DIFFERENCES:
            return self.whole
        return min(self.whole, (version - had) * self.difference)

    def state(self) -> list[tuple[ClientId, int]]:
        """Return the version that each client has."""
        return list(self._versions.items())

    def restore(self, state: list[tuple[ClientId, int]]) -> None:
        """Continue from a `state()`."""
        self._versions = dict(state)
