"""Reading a growing `events.jsonl` piece by piece, by byte offset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tardigrad.core.events import Event
from tardigrad.watch.event_lines import events_of

PIECE = 1 << 18
"""Bytes that are read at once."""
MARK = 1024
"""Bytes before the offset by which a file that was replaced is told from one that grew."""


class NewEvents(NamedTuple):
    """The result of `EventTail.read`."""

    events: list[Event]
    again: bool
    """Whether the file was cut back or replaced, so that these are events from its beginning."""
    size: int = 0
    """Bytes that were read."""


class EventTail:
    """Reads the events that were appended since the last call. Its memory does not grow with the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._mark = b""
        self._skip = False  # the rest of a line that is longer than a piece
        self.size = 0
        """The file's size when it was read last."""
        self.written = 0.0
        """When the file was written last, in seconds since 1970."""
        self.damaged = 0
        """Lines that were not events."""

    @property
    def behind(self) -> int:
        """Bytes that are there and not read."""
        return max(0, self.size - self._offset)

    @property
    def share(self) -> float:
        """The share of the file that was read, from 0 to 1."""
        return self._offset / self.size if self.size else 1.0

    def read(self) -> NewEvents:
        """Return the next events, from at most `PIECE` bytes; none if the file cannot be read."""
        again = False
        try:
            with self._file.open("rb") as file:
                found = os.fstat(file.fileno())
                self.size, self.written = found.st_size, found.st_mtime
                file.seek(max(0, self._offset - len(self._mark)))
                if self.size < self._offset or file.read(len(self._mark)) != self._mark:
                    again = True
                    self._offset, self._mark, self._skip, self.damaged = 0, b"", False, 0
                    file.seek(0)
                piece = file.read(PIECE)
        except OSError:
            return NewEvents([], again=False)
        end = piece.rfind(b"\n") + 1
        if end == 0 and len(piece) == PIECE:
            self.damaged += not self._skip
            end, self._skip = PIECE, True
        lines = piece[:end].splitlines()
        self._offset += end
        self._mark = (self._mark + piece[:end])[-MARK:]
        if self._skip and b"\n" in piece[:end]:
            lines, self._skip = lines[1:], False
        events = [] if self._skip else events_of(lines)
        self.damaged += 0 if self._skip else len(lines) - len(events)
        return NewEvents(events, again, end)
