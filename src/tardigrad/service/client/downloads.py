"""Downloads of a client: from what the server sends, the vectors of a task."""

from __future__ import annotations

from tardigrad.core.upload import Vectors, bytes_of
from tardigrad.encodings.broadcasts import BFloat16Broadcast, BroadcastEncoding, DifferenceBroadcast
from tardigrad.errors import RunError
from tardigrad.service.protocol.wire import Layout


class Downloads:
    """The version that a client has, if the server sends the differences between versions."""

    def __init__(self) -> None:
        self._version = -1
        self._vectors: Vectors = {}

    @property
    def has(self) -> int:
        """1 + the version that the client has; 0 if it has none."""
        return self._version + 1

    def expected(self, encoding: BroadcastEncoding, since: int, version: int) -> Layout:
        """Return the layout of the differences since the version that the client has. Raise a RunError if the
        server cannot mean that. `since`: as in the task's header."""
        if since != self.has or version < self._version:
            raise RunError(f"the server sends differences to version {since - 1}, which this client has not")
        lengths = {name: vector.numel() for name, vector in self._vectors.items()}
        parts = [part for name, length in lengths.items() for part in encoding.difference(name, length)]
        whole = bytes_of(encoding.whole(name, length) for name, length in lengths.items())
        if (version - self._version) * bytes_of(parts) > whole:
            raise RunError("the server sends differences that are larger than the whole version")
        steps = range(self._version + 1, version + 1)
        return tuple(part._replace(name=f"{step}/{part.name}") for step in steps for part in parts)

    def vectors(self, encoding: BroadcastEncoding, since: int, version: int, received: Vectors) -> Vectors:
        """Return the vectors of a version from what was received, and keep them if differences will come."""
        if isinstance(encoding, BFloat16Broadcast):
            return {name: vector.float() for name, vector in received.items()}
        if not isinstance(encoding, DifferenceBroadcast):
            return received
        vectors = self._vectors if since else received
        for step in range(since, version + 1) if since else ():
            vectors = _next(vectors, encoding, f"{step}/", received)
        self._version, self._vectors = version, vectors
        return vectors


def _next(vectors: Vectors, encoding: DifferenceBroadcast, prefix: str, received: Vectors) -> Vectors:
    """Return the vectors of the version after that of `vectors`."""
    found = {}
    for name, vector in vectors.items():
        names = [part.name for part in encoding.difference(name, vector.numel())]
        parts = {part: received[prefix + part] for part in names}
        objection = encoding.encoding.objection(name, parts, vector.numel())
        if objection is not None:
            raise RunError(f"the server's difference cannot be decoded: {objection}")
        found[name] = encoding.apply(name, vector, parts)
    return found
