"""A store in memory, which ends with the process: for measurements (`serve --no-durability`) and tests."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from tardigrad.service.store.contract import ANSWERS, JournalEntry, RecordedAnswer, StoreError
from tardigrad.service.store.payload_file import PayloadFile


class MemoryStore:
    """Keeps journal, answers and facts in memory, and no payloads."""

    durable = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, JournalEntry] = {}  # by position, in ascending order
        self._last = self._forgotten = 0
        self._answers: dict[str, dict[int, RecordedAnswer]] = {}  # by client and trip
        self._clients: dict[int, str] = {}  # by trip: the client whose answer is kept
        self._facts: dict[str, str] = {}

    def append(self, entries: Iterable[JournalEntry]) -> int:
        """Append all entries and return the position of the last."""
        entries = list(entries)
        assert entries, "append needs at least one entry"
        with self._lock:
            self._entries.update(enumerate(entries, start=self._last + 1))
            self._last += len(entries)
            return self._last

    def entries(self, after: int) -> list[tuple[int, JournalEntry]]:
        """Return the entries above a position."""
        with self._lock:
            return [(position, entry) for position, entry in self._entries.items() if position > after]

    @property
    def last(self) -> int:
        """Position of the last entry that was ever appended."""
        return self._last

    @property
    def forgotten(self) -> int:
        """Position of the last entry that a snapshot contains."""
        return self._forgotten

    def forget(self, last: int) -> None:
        """Delete all entries up to this position."""
        with self._lock:
            for position in [position for position in self._entries if position <= last]:
                del self._entries[position]
            self._forgotten = last

    def restart_after(self, position: int) -> None:
        """Delete all entries and go on after `position`."""
        with self._lock:
            self._entries.clear()
            self._last = self._forgotten = position

    def remember(self, answers: Iterable[RecordedAnswer]) -> None:
        """Keep the last answers of each client."""
        answers = list(answers)
        with self._lock:
            for one in answers:
                self._answers.get(self._clients.get(one.trip, one.client), {}).pop(one.trip, None)
                self._answers.setdefault(one.client, {})[one.trip] = one
                self._clients[one.trip] = one.client
            for client in {one.client for one in answers}:
                own = self._answers[client]
                for trip in sorted(own)[:-ANSWERS]:
                    del own[trip], self._clients[trip]

    def answer(self, trip: int) -> RecordedAnswer | None:
        """Return the answer that was given to the upload of this trip."""
        with self._lock:
            return self._answers[self._clients[trip]][trip] if trip in self._clients else None

    def fact(self, name: str, default: str) -> str:
        """Return a fact, after storing `default` if there was none."""
        return self._facts.setdefault(name, default)

    def adopt(self, run: str) -> None:
        """Become the store of this run."""
        self._facts["run"] = run

    def write(self, trip: int, payload: np.ndarray) -> str:
        """Keep nothing: no other process could read it."""
        return ""

    def write_together(self, payloads: Sequence[np.ndarray]) -> list[str]:
        """Keep nothing."""
        return [""] * len(payloads)

    def receive(self, trip: int) -> PayloadFile:
        """Return a file that is gone when it is closed: no other process could read it."""
        return self.temporary()

    def temporary(self) -> PayloadFile:
        """Return a file in the system's folder for temporary files."""
        try:
            with tempfile.TemporaryFile() as file:
                return PayloadFile(os.dup(file.fileno()))
        except OSError as error:
            raise StoreError(f"temporary files: {error.strerror or error}") from error

    def sync(self) -> None:
        """Do nothing: there are no payloads."""

    def read(self, name: str, size: int, digest: bytes) -> np.ndarray:
        """Raise a `StoreError`: there are no payloads."""
        raise StoreError(f"upload {name!r} is not stored: a store in memory keeps no uploads")

    def recycle(self, names: Iterable[str]) -> None:
        """Do nothing: there are no payloads."""

    def discard(self, name: str) -> None:
        """Do nothing: there are no payloads."""

    def keep_only(self, names: set[str]) -> None:
        """Do nothing: there are no payloads."""

    def checkpoint(self) -> None:
        """Do nothing: there is no log file."""

    def close(self) -> None:
        """Do nothing: memory is released with the object."""
