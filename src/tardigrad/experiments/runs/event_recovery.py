"""The recorded events of a run that is reopened: which of them are kept, and which a server must tell again.

Recovery of a served run repeats the events after its last snapshot. Until it has, the events that the dead
server had recorded are in a file of their own, because the server may be killed again while it recovers.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tardigrad.core.event_log import event_of
from tardigrad.core.events import TripGivenUp, UploadReceived
from tardigrad.core.files import replace
from tardigrad.errors import RunError

BEFORE = "events.before"
"""The events that a dead server had recorded after its last snapshot, while recovery repeats them."""
DAMAGED = "events.damaged"
"""A copy of recorded events of which some lines are damaged."""
log = logging.getLogger("tardigrad.experiments")


class KeptEvents(NamedTuple):
    """The events to keep of a run that is reopened."""

    length: int
    """Bytes of the events that are in the snapshot."""
    undamaged: list[bytes]
    """If some lines are damaged, the others; else empty."""
    before: list[bytes]
    """Lines that a dead server had recorded after its last snapshot."""


def check_events(events: Path, length: int, accept_loss: bool, advice: str) -> KeptEvents:
    """Compare the recorded events of a served run with its snapshot and return those to keep.

    `length`: the bytes of the events that are in the snapshot. Raises a RunError with the advice if some of
    them are damaged, unless the loss is accepted.
    """
    aside = events.with_name(BEFORE)
    with events.open("rb") as file:
        kept, tail = file.read(length), file.read()
    earlier = aside.read_bytes() if aside.is_file() else b""
    after = (earlier + tail[: tail.rfind(b"\n") + 1]).splitlines(keepends=True)
    lines = kept.splitlines(keepends=True)
    bad = [number for number, line in enumerate(lines, 1) if event_of(line) is None]
    if bad and not accept_loss:
        raise RunError(f"{events}, line {bad[0]}: not an event; the file is damaged; {advice}")
    good = [line for line in lines if event_of(line) is not None]
    if bad or len(kept) < length:
        log.error(
            "%s is damaged: %d bytes are missing and %d lines are no events; the file is kept as %s",
            events, length - len(kept), len(bad), DAMAGED, extra={"event": "loss"},
        )  # fmt: skip
    undamaged = good if bad or len(kept) < length else []
    return KeptEvents(sum(map(len, good)), undamaged, list(dict.fromkeys(after)))


class EventRecovery:
    """The events of a dead server while recovery repeats them."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._before: list[bytes] = []
        self._length = 0  # of the events that are in the snapshot
        self._complete = False

    def begin(self, kept: KeptEvents) -> None:
        """Put the events after the snapshot into a file of their own, and leave out damaged lines."""
        if kept.undamaged:
            shutil.copyfile(self._events, self._events.with_name(DAMAGED))
            _replace(self._events, kept.undamaged)
        if kept.before:
            _replace(self._events.with_name(BEFORE), kept.before)
            self._before = kept.before
        self._length = kept.length

    def unrecovered(self, recorded: BinaryIO) -> list[UploadReceived]:
        """Return the uploads that the dead server had recorded and that recovery, which is complete, has not
        repeated: they were acknowledged and are lost. `recorded`: the file of events, open for writing."""
        if not self._before:
            return []
        recorded.flush()
        with self._events.open("rb") as file:
            file.seek(self._length)
            recovered = [event_of(line) for line in file]
        again = {event.trip for event in recovered if isinstance(event, UploadReceived | TripGivenUp)}
        before = [event for event in map(event_of, self._before) if isinstance(event, UploadReceived)]
        return [event for event in before if event.trip not in again]

    def complete(self, recorded: BinaryIO) -> None:
        """Accept the events as they are: all were repeated, or their loss was accepted. The file aside is
        deleted, because beside the next snapshot its events would look lost."""
        self._complete = True
        if self._before:
            recorded.flush()
            os.fsync(recorded.fileno())
            self._events.with_name(BEFORE).unlink()

    def undo(self, recorded: BinaryIO) -> None:
        """Restore the events as the dead server left them, if recovery was refused."""
        if self._before and not self._complete:
            recorded.truncate(self._length)
            recorded.seek(self._length)
            recorded.writelines(self._before)
            self._events.with_name(BEFORE).unlink(missing_ok=True)


def _replace(file: Path, lines: list[bytes]) -> None:
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(b"".join(lines))
    replace(partial, file)
