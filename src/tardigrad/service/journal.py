"""The journal: what clients did, in the order in which it counts. What is in it survives a crash.

Bookkeeping and aggregator are deterministic, so a snapshot and the entries after it are the whole run.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tardigrad.errors import RunError

FORMAT = "tardigrad-journal-1"
ANSWERS = 16
"""Answers of one client that are kept: it delivers one trip at a time, and asks again for the last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened."""

    kind: Literal["check_in", "deliver", "give_up", "end"]
    time: float
    client: str = ""
    trip: int = -1
    file: str = ""
    """Where the upload's vectors are."""
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    digest: bytes = b""
    evaluated: int = 0
    metrics: str = "{}"
    """Of the client's own evaluation, as JSON."""
    reason: str = ""
    """Why the run ends."""
    norm: float = 0.0
    """Of the upload; 0 in private runs."""
    refusal: str = ""
    """Why the upload does not count, if that was decided by its values."""
    epoch: int = 0
    """Random number of the server process that granted the ticket; 0 for tickets without one."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of an upload, for a client that asks again."""

    trip: int
    client: str
    digest: bytes
    answer: dict[str, Any]
    epoch: int = 0
    """Of the ticket."""


COLUMNS = [field.name for field in fields(Entry)]
TYPES = {"int": ("INTEGER", "0"), "float": ("REAL", "0.0"), "bytes": ("BLOB", "x''")}
"""Column types and defaults by the annotations of `Entry`; everything else is text."""
TEXT = ("TEXT", "''")
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS answers (
    trip INTEGER PRIMARY KEY, client TEXT NOT NULL, digest BLOB NOT NULL, answer TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS answers_by_client ON answers (client, trip);
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, time REAL, client TEXT, trip INTEGER, file TEXT,
    examples INTEGER, steps INTEGER, loss REAL, digest BLOB, evaluated INTEGER, metrics TEXT, reason TEXT,
    norm REAL, refusal TEXT
) STRICT;
"""
INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class Journal:
    """A small SQLite database. To be used by one thread at a time."""

    def __init__(self, file: Path | None) -> None:
        """Without a file it is in memory, and ends with the process."""
        self._file = file
        try:
            if file is not None:  # for the owner alone; SQLite gives its other files the same mode
                os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                ":memory:" if file is None else file, check_same_thread=False, isolation_level=None
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.executescript(SCHEMA)
            if self.fact("format", FORMAT) != FORMAT:
                raise sqlite3.DatabaseError(f"not a {FORMAT} file")
            for field in fields(Entry):
                self._add_missing("entries", field.name, *TYPES.get(str(field.type).split(" | ")[0], TEXT))
            self._add_missing("answers", "epoch", *TYPES["int"])
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"{file} is damaged or cannot be written ({error}); start a new run") from None

    def settle(self) -> None:
        """Move what is in the write-ahead log into the database itself, so that the loss of the log's file
        cannot take the run's identity with it."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def forgotten(self) -> int:
        """The number of the last entry that was deleted because a snapshot holds it."""
        return int(self.fact("forgotten", "0"))

    @property
    def last(self) -> int:
        """The number of the last entry that was ever appended."""
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
        return 0 if row is None else int(row[0])

    def adopt(self, run: str) -> None:
        """Be the journal of this run: its own was lost."""
        with self._transaction():
            self._set("run", run)

    def restart_after(self, position: int) -> None:
        """Delete all entries; the next one gets a number above `position`."""
        with self._transaction():
            self._database.execute("DELETE FROM entries")
            self._database.execute("DELETE FROM sqlite_sequence WHERE name = 'entries'")
            self._database.execute("INSERT INTO sqlite_sequence VALUES ('entries', ?)", (position,))
            self._set("forgotten", str(position))

    def _add_missing(self, table: str, column: str, kind: str, default: str) -> None:
        """Add a column that this version has and the one that made the file had not."""
        if column not in {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}:
            with self._transaction():
                self._database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind} DEFAULT {default}")

    def fact(self, name: str, default: str) -> str:
        """What is written down under this name; the default is, if nothing was."""
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, default))
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0])

    def _set(self, name: str, value: str) -> None:
        self._database.execute(
            "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def append(self, entries: Iterable[Entry]) -> int:
        """All of them or none; they are on disk when this returns. The number of the last.

        Check-ins alone are only given to the system, which a killed server survives: the next upload takes
        them to disk. If the power fails before, their tickets never were, and nobody was promised anything.
        """
        last = None
        entries = list(entries)
        with self._transaction(on_disk=any(entry.kind != "check_in" for entry in entries)):
            for entry in entries:
                last = self._database.execute(INSERT, astuple(entry)).lastrowid
        assert last is not None, "there is at least one"
        return last

    def entries(self, after: int) -> list[tuple[int, Entry]]:
        """All that came later, with their numbers."""
        rows = self._database.execute(
            f"SELECT id, {', '.join(COLUMNS)} FROM entries WHERE id > ? ORDER BY id", (after,)
        )
        return [(row[0], Entry(*row[1:])) for row in rows]

    def remember(self, answers: Iterable[Recorded]) -> None:
        """Keep answers whose entries are about to be forgotten: of each client, the last few. A client asks
        again for the trip that it delivered last, so older answers are of no use."""
        answers = list(answers)
        rows = [(one.trip, one.client, one.digest, json.dumps(one.answer), one.epoch) for one in answers]
        clients = {(one.client, one.client, ANSWERS) for one in answers}
        with self._transaction():
            self._database.executemany(
                "INSERT OR REPLACE INTO answers (trip, client, digest, answer, epoch) VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            self._database.executemany(
                "DELETE FROM answers WHERE client = ? AND trip NOT IN "
                "(SELECT trip FROM answers WHERE client = ? ORDER BY trip DESC LIMIT ?)",
                clients,
            )

    def answer(self, trip: int) -> Recorded | None:
        """What became of the upload of this trip."""
        row = self._database.execute(
            "SELECT client, digest, answer, epoch FROM answers WHERE trip = ?", (trip,)
        ).fetchone()
        return None if row is None else Recorded(trip, row[0], row[1], json.loads(row[2]), row[3])

    def forget(self, last: int) -> None:
        """Up to here all is in a snapshot."""
        with self._transaction():
            self._database.execute("DELETE FROM entries WHERE id <= ?", (last,))
            self._set("forgotten", str(last))

    @contextmanager
    def _transaction(self, on_disk: bool = True) -> Iterator[None]:
        """All of it or nothing; on disk at the end, or only with the system."""
        self._database.execute(f"PRAGMA synchronous={'FULL' if on_disk else 'NORMAL'}")
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


def is_whole(file: Path) -> bool:
    """Whether a journal has all entries that there ever were, none in a snapshot alone. Changes nothing."""
    try:
        with closing(sqlite3.connect(file)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
                return True  # killed in its first moment
            first = database.execute("SELECT min(id) FROM entries").fetchone()[0]
            last = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
    except sqlite3.Error as error:
        raise RunError(f"{file} is damaged or cannot be read ({error}); start a new run") from None
    return first == 1 if first is not None else last is None
