"""The state of a helper: one SQLite database, so that related values change together or not at all.
Large values are in files beside it (`large_values.py`).

Seeds and keys are erased once they are not needed: SQLite overwrites deleted rows, and `scrub` empties the
write-ahead log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tardigrad.core.folder_lock import FolderLock
from tardigrad.core.participation import ClientId
from tardigrad.errors import RunError
from tardigrad.secure.batches import AdmittedUpload
from tardigrad.secure.large_values import LargeValues

FILE = "helper.db"
VALUES = "values"
FORMAT = b"tardigrad-helper-1"
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS trips (
    trip INTEGER PRIMARY KEY, client TEXT NOT NULL, version INTEGER NOT NULL, digest BLOB NOT NULL,
    batch INTEGER NOT NULL, place INTEGER NOT NULL, weight INTEGER NOT NULL, refusal TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS members ON trips (batch, place) WHERE batch > 0;
CREATE TABLE IF NOT EXISTS seeds (trip INTEGER PRIMARY KEY, seed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checked (
    trip INTEGER PRIMARY KEY, client TEXT NOT NULL, version INTEGER NOT NULL, digest BLOB NOT NULL,
    seed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sealing_keys (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key_id BLOB NOT NULL, private BLOB NOT NULL, made REAL NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, masked_digest BLOB NOT NULL, abandoned INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS receipts (
    version INTEGER PRIMARY KEY, receipt BLOB NOT NULL, signature BLOB NOT NULL);
"""


class TripRecord(NamedTuple):
    """An upload that was admitted or refused. The decision is final."""

    trip: int
    client: str
    version: int
    digest: bytes
    """The digest of its masked bytes."""
    batch: int
    """0 if it was refused."""
    place: int
    weight: int
    refusal: str
    """Why it was refused; "" if it was admitted."""


class DecidedBatch(NamedTuple):
    """A batch that was released or abandoned."""

    number: int
    masked_digest: bytes
    """The digest of the masked sum that it was released for; empty if it was abandoned."""
    abandoned: bool


class SealingKeyRecord(NamedTuple):
    """A key that clients seal seeds to."""

    key_id: bytes
    private: bytes
    made: float
    """When, in seconds since 1970."""


class HelperDatabase:
    """The database in a helper's folder, which is locked as long as it is open."""

    def __init__(self, folder: Path) -> None:
        """Open the database, or create it. Raise a ConfigError if another process has the folder, and a
        RunError if the file is damaged."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FolderLock(folder)
        self._lock.acquire()
        self._file = folder / FILE
        try:
            self.values = LargeValues(folder / VALUES)
            if not self._file.exists():
                self._file.touch(0o600)
            self._connection = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            self._lock.release()
            raise RunError(f"{self._file} is damaged or cannot be written ({error})") from None
        except BaseException:
            self._lock.release()
            raise

    def _prepare(self) -> None:
        for setting in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {setting}")
        with self.transaction():
            for statement in SCHEMA.split(";"):
                self._connection.execute(statement)
            if self.fact("format") is None:
                self.set_fact("format", FORMAT)
        if self.fact("format") != FORMAT:
            raise sqlite3.DatabaseError(f"not a {FORMAT.decode()} file")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes of the block together, durably, or none of them."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise RunError(f"{self._file} cannot be written ({error}); make room, and start again") from None

    def scrub(self) -> None:
        """Empty the write-ahead log, in which there may be copies of what was deleted."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the database and let others open it."""
        self._connection.close()
        self._lock.release()

    # -- facts -------------------------------------------------------------------------------------

    def fact(self, name: str) -> bytes | None:
        """Return a value, or None if there is none of this name."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def set_fact(self, name: str, value: bytes) -> None:
        """Store a value."""
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # -- uploads -----------------------------------------------------------------------------------

    def trip(self, number: int) -> TripRecord | None:
        """Return what was decided about the upload of this trip, or None if it was never seen."""
        row = self._connection.execute("SELECT * FROM trips WHERE trip = ?", (number,)).fetchone()
        return None if row is None else TripRecord(*row)

    def add_trip(self, record: TripRecord, seed: bytes | None) -> None:
        """Store a decision, and the seed of an upload that was admitted."""
        self._connection.execute("INSERT INTO trips VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record)
        if seed is not None:
            self._connection.execute("INSERT INTO seeds VALUES (?, ?)", (record.trip, seed))

    def checked_seed(self, trip: int, client: str, version: int, digest: bytes) -> bytes | None:
        """Return the seed of an upload that was checked and found good, or None if it was not."""
        row = self._connection.execute(
            "SELECT seed FROM checked WHERE trip = ? AND client = ? AND version = ? AND digest = ?",
            (trip, client, version, digest),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def add_checked(self, trip: int, client: str, version: int, digest: bytes, seed: bytes) -> None:
        """Store that an upload was checked and found good."""
        row = trip, client, version, digest, seed
        self._connection.execute("INSERT OR REPLACE INTO checked VALUES (?, ?, ?, ?, ?)", row)

    def members(self, after: int) -> list[tuple[AdmittedUpload, bytes]]:
        """Return the uploads of all batches after this one, in order, and the digests of their bytes."""
        rows = self._connection.execute(
            "SELECT trip, client, version, batch, place, weight, digest FROM trips WHERE batch > ? "
            "ORDER BY batch, place",
            (after,),
        )
        return [(AdmittedUpload(*row[:6]), row[6]) for row in rows]

    def participations(self, until: int) -> list[tuple[ClientId, int, int]]:
        """Return each client, in how many batches up to this one it was, and its last one."""
        rows = self._connection.execute(
            "SELECT client, count(*), max(batch) FROM trips WHERE batch BETWEEN 1 AND ? GROUP BY client",
            (until,),
        )
        return [(str(client), int(count), int(last)) for client, count, last in rows]

    def seeds(self, batch: int) -> dict[int, bytes]:
        """Return the seeds of a batch, by trip."""
        query = "SELECT trip, seed FROM seeds JOIN trips USING (trip) WHERE batch = ?"
        return {trip: bytes(seed) for trip, seed in self._connection.execute(query, (batch,))}

    def erase_seeds(self, batch: int) -> None:
        """Delete the seeds of a batch, and those of all uploads that were only checked."""
        self._connection.execute("DELETE FROM checked")
        self._connection.execute(
            "DELETE FROM seeds WHERE trip IN (SELECT trip FROM trips WHERE batch = ?)", (batch,)
        )

    # -- keys, batches, receipts -------------------------------------------------------------------

    def sealing_keys(self) -> list[SealingKeyRecord]:
        """Return the keys that are kept, the oldest first."""
        rows = self._connection.execute("SELECT key_id, private, made FROM sealing_keys ORDER BY number")
        return [SealingKeyRecord(*row) for row in rows]

    def add_sealing_key(self, record: SealingKeyRecord, keep: int) -> None:
        """Store a key, and erase all but the newest `keep`."""
        self._connection.execute("INSERT INTO sealing_keys (key_id, private, made) VALUES (?, ?, ?)", record)
        self._connection.execute(
            "DELETE FROM sealing_keys WHERE number NOT IN "
            "(SELECT number FROM sealing_keys ORDER BY number DESC LIMIT ?)",
            (keep,),
        )

    def last_decided(self) -> DecidedBatch | None:
        """Return the last batch that was released or abandoned, or None if there was none."""
        row = self._connection.execute("SELECT * FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else DecidedBatch(row[0], row[1], bool(row[2]))

    def last_released(self) -> int:
        """Return the number of the last batch that was released, or 0 if there was none."""
        row = self._connection.execute("SELECT max(number) FROM batches WHERE NOT abandoned").fetchone()
        return int(row[0] or 0)

    def decide(self, batch: DecidedBatch) -> None:
        """Store that a batch was released or abandoned."""
        self._connection.execute("INSERT INTO batches VALUES (?, ?, ?)", batch)

    def receipt(self, version: int | None) -> tuple[bytes, bytes]:
        """Return the receipt of a version and its signature, or the newest. A run has begun."""
        content, signature = self._connection.execute(
            "SELECT receipt, signature FROM receipts "
            "WHERE version = coalesce(?, (SELECT max(version) FROM receipts))",
            (version,),
        ).fetchone()
        return bytes(content), bytes(signature)

    def add_receipt(self, version: int, receipt: bytes, signature: bytes) -> None:
        """Store a receipt."""
        self._connection.execute("INSERT INTO receipts VALUES (?, ?, ?)", (version, receipt, signature))
