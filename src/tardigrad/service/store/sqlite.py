"""A store on disk: an SQLite database for journal, answers and facts, and a file for each upload."""

from __future__ import annotations

import fcntl
import functools
import io
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tardigrad.errors import RunError
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.service.store.contract import ANSWERS, JournalEntry, RecordedAnswer, StoreError
from tardigrad.service.store.upload_files import UploadFiles

JOURNAL = "journal.sqlite"
UPLOADS = "uploads"
FORMAT = "tardigrad-journal-1"

COLUMNS = [field.name for field in fields(JournalEntry)]
ROW = attrgetter(*COLUMNS)
TYPES = {"int": ("INTEGER", "0"), "float": ("REAL", "0.0"), "bytes": ("BLOB", "x''")}
"""Column types and defaults by the annotations of `JournalEntry`; all others are text."""
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
INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES "
VALUES = f"({', '.join('?' * len(COLUMNS))})"
MOST_ROWS = 256
"""Entries of one statement: SQLite takes 32,766 parameters."""

P = ParamSpec("P")
T = TypeVar("T")


def _guarded(
    method: Callable[Concatenate[SqliteStore, P], T],
) -> Callable[Concatenate[SqliteStore, P], T]:
    """Make a method hold the database's lock, and raise a `StoreError` in place of an error of SQLite."""

    @functools.wraps(method)
    def guarded(store: SqliteStore, /, *given: P.args, **named: P.kwargs) -> T:
        try:
            with store._one_thread:
                return method(store, *given, **named)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{JOURNAL}: {error}") from error

    return guarded


class SqliteStore(UploadFiles):
    """A folder with the database `journal.sqlite` and the uploads in `uploads/`. Only one store at a time can
    have it open."""

    durable = True

    def __init__(self, folder: Path) -> None:
        """Open the store in this folder, or begin one."""
        file = folder / JOURNAL
        self._one_thread = threading.RLock()
        self._on_disk: bool | None = None  # what the last transaction was told; None before the first
        self._in_use = _lock(folder / f"{JOURNAL}-lock")
        try:
            # readable by the owner alone; SQLite gives its other files the same mode
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            try:
                self._prepare()
                super().__init__(folder / UPLOADS)
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.Error) as error:
            self._in_use.close()
            raise StoreError(f"{file} is damaged or cannot be written ({error}); start a new run") from None
        except BaseException:
            self._in_use.close()
            raise

    def _prepare(self) -> None:
        """Create tables and columns that are missing, and check the format."""
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(SCHEMA)
        if self._fact("format", FORMAT) != FORMAT:
            raise sqlite3.DatabaseError(f"not a {FORMAT} file")
        for field in fields(JournalEntry):
            self._add_missing("entries", field.name, *TYPES.get(str(field.type).split(" | ")[0], TEXT))
        self._add_missing("answers", "epoch", *TYPES["int"])

    def _add_missing(self, table: str, column: str, kind: str, default: str) -> None:
        """Add a column that the version which created the file did not have."""
        if column not in {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}:
            with self._transaction():
                self._database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind} DEFAULT {default}")

    # -- journal -----------------------------------------------------------------------------------

    @_guarded
    def append(self, entries: Iterable[JournalEntry]) -> int:
        """Append all entries in one transaction, and return the position of the last. Check-ins alone are
        handed to the operating system without waiting for the disk."""
        entries = list(entries)
        assert entries, "append needs at least one entry"
        last = None
        with self._transaction(on_disk=any(entry.kind != "check_in" for entry in entries)):
            for begin in range(0, len(entries), MOST_ROWS):
                rows = [ROW(entry) for entry in entries[begin : begin + MOST_ROWS]]
                # one statement, because Python's lock is given up for each
                insert = INSERT + ", ".join([VALUES] * len(rows))
                last = self._database.execute(insert, list(chain.from_iterable(rows))).lastrowid
        assert last is not None, "a row was inserted"
        return last

    @_guarded
    def entries(self, after: int) -> list[tuple[int, JournalEntry]]:
        """Return the entries above a position."""
        rows = self._database.execute(
            f"SELECT id, {', '.join(COLUMNS)} FROM entries WHERE id > ? ORDER BY id", (after,)
        )
        return [(row[0], JournalEntry(*row[1:])) for row in rows]

    @property
    @_guarded
    def last(self) -> int:
        """Position of the last entry that was ever appended."""
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
        return 0 if row is None else int(row[0])

    @property
    @_guarded
    def forgotten(self) -> int:
        """Position of the last entry that was deleted because a snapshot contains it."""
        return int(self._fact("forgotten", "0"))

    @_guarded
    def forget(self, last: int) -> None:
        """Delete all entries up to this position."""
        with self._transaction():
            self._database.execute("DELETE FROM entries WHERE id <= ?", (last,))
            self._set("forgotten", str(last))

    @_guarded
    def restart_after(self, position: int) -> None:
        """Delete all entries; the next one gets the position after `position`."""
        with self._transaction():
            self._database.execute("DELETE FROM entries")
            self._database.execute("DELETE FROM sqlite_sequence WHERE name = 'entries'")
            self._database.execute("INSERT INTO sqlite_sequence VALUES ('entries', ?)", (position,))
            self._set("forgotten", str(position))

    # -- answers and facts -------------------------------------------------------------------------

    @_guarded
    def remember(self, answers: Iterable[RecordedAnswer]) -> None:
        """Keep the last answers of each client."""
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

    @_guarded
    def answer(self, trip: int) -> RecordedAnswer | None:
        """Return the answer that was given to the upload of this trip."""
        row = self._database.execute(
            "SELECT client, digest, answer, epoch FROM answers WHERE trip = ?", (trip,)
        ).fetchone()
        return None if row is None else RecordedAnswer(trip, row[0], row[1], json.loads(row[2]), row[3])

    @_guarded
    def fact(self, name: str, default: str) -> str:
        """Return a fact, after storing `default` if there was none."""
        return self._fact(name, default)

    def _fact(self, name: str, default: str) -> str:
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, default))
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0])

    @_guarded
    def adopt(self, run: str) -> None:
        """Become the store of this run."""
        with self._transaction():
            self._set("run", run)

    def _set(self, name: str, value: str) -> None:
        self._database.execute(
            "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    # -- life --------------------------------------------------------------------------------------

    @_guarded
    def checkpoint(self) -> None:
        """Move the contents of the write-ahead log into the database file."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _transaction(self, on_disk: bool = True) -> Iterator[None]:
        """Commit the statements of the block together, or roll all of them back. `on_disk`: wait until they
        are on disk, and not only with the operating system."""
        if self._on_disk != on_disk:
            self._database.execute(f"PRAGMA synchronous={'FULL' if on_disk else 'NORMAL'}")
            self._on_disk = on_disk
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @_guarded
    def close(self) -> None:
        """Close the database and let others open it."""
        self._database.close()
        self._in_use.close()


def _lock(path: Path) -> io.FileIO:
    """Lock a file until the object that is returned is closed, or the process ends."""
    try:
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}); start a new run") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(
            f"{path.parent} is in use by another server; stop that one, or give another folder"
        ) from None
    return file


def has_all_entries(folder: Path) -> bool | None:
    """Return whether the journal in this folder has every entry that was ever appended, so that the run can
    be recovered without a snapshot; None if there is no journal. Changes nothing."""
    file = folder / JOURNAL
    if not file.exists():
        return None
    try:
        with closing(sqlite3.connect(file)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
                return True  # the process was killed before it created the tables
            first = database.execute("SELECT min(id) FROM entries").fetchone()[0]
            last = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{file} is damaged or cannot be read ({error}); start a new run") from None
    return first == 1 if first is not None else last is None


def check_whole(folder: Path, private: bool = False) -> None:
    """Refuse a run that has lost its snapshot: it would begin again and overwrite what is left of it."""
    events = folder / "events.jsonl"
    if (folder / "snapshot.safetensors").exists():
        return
    whole = has_all_entries(folder)
    if whole is None:
        whole = not events.exists() or b'"event": "upload"' not in events.read_bytes()
    if not whole:
        raise RunError(
            f"{folder}: holds a run whose snapshot.safetensors is gone, or its {JOURNAL} or summary.json; "
            + (NEW_RUN if private else "put them back from a backup, or give another folder")
        )


def remove_store(folder: Path) -> None:
    """Delete journal and uploads of a run that is over."""
    shutil.rmtree(folder / UPLOADS, ignore_errors=True)
    for file in folder.glob(f"{JOURNAL}*"):
        file.unlink(missing_ok=True)
