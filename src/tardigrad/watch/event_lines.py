"""Events from the bytes of a file, which come in pieces."""

from __future__ import annotations

from tardigrad.core.event_log import event_of
from tardigrad.core.events import Event

LONGEST = 1 << 15
"""Bytes of a line; a longer one is no event that was written here. It is left out, and counted as damaged."""


class EventLines:
    """Makes events of the pieces of a file in their order. Its memory does not grow with the file.

    >>> lines = EventLines()
    >>> lines.take(b'{"event": "end", "reason": "trips", "version": 1, ')
    []
    >>> lines.take(b'"trips": 9, "time": 2.0, "bytes": 0}\\nnot an event\\n')[0].reason
    'trips'
    >>> lines.damaged
    1
    """

    def __init__(self) -> None:
        self._rest = b""
        self._skip = False  # the rest of a line that is too long
        self.damaged = 0
        """Lines that were not events."""

    def take(self, piece: bytes) -> list[Event]:
        """Return the events of the lines that this piece completes."""
        *lines, rest = (self._rest + piece).split(b"\n")
        if self._skip and lines:
            lines, self._skip = lines[1:], False
        if len(rest) > LONGEST or self._skip:
            self.damaged += not self._skip
            rest, self._skip = b"", True
        self._rest = rest
        events = events_of(lines)
        self.damaged += len(lines) - len(events)
        return events


def events_of(lines: list[bytes]) -> list[Event]:
    """Return the events of whole lines, without those of lines that are damaged or too long."""
    found = (event_of(line) for line in lines if len(line) <= LONGEST)
    return [event for event in found if event is not None]
