"""The SQLite store beyond the contract: waiting for the disk, older versions, runs without a snapshot."""

import os
import sqlite3
import stat
from contextlib import closing

import numpy as np
import pytest

import tardigrad as td
from tardigrad.service.protocol.wire import digest
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, StoreError
from tardigrad.service.store.sqlite import (
    JOURNAL,
    MOST_ROWS,
    UPLOADS,
    SqliteStore,
    check_whole,
    has_all_entries,
    remove_store,
)

NORMAL, FULL = 1, 2  # SQLite's names for handing data to the system, and for waiting for the disk
CHECK_IN = JournalEntry("check_in", 0.0, client="ann")
UPLOAD = JournalEntry("deliver", 1.0, client="ann", trip=0, file="0.upload", digest=b"d")


@pytest.fixture
def store(tmp_path):
    with closing(SqliteStore(tmp_path)) as store:
        yield store


def waits_for(store):
    return store._database.execute("PRAGMA synchronous").fetchone()[0]


def test_the_disk_is_waited_for_unless_all_entries_are_check_ins(store):
    assert store.append([CHECK_IN]) == 1
    assert waits_for(store) == NORMAL
    assert store.append([CHECK_IN, UPLOAD]) == 3
    assert waits_for(store) == FULL
    store.append([CHECK_IN])
    for change in (
        lambda: store.append([JournalEntry("give_up", 0.0, trip=0)]),
        lambda: store.append([JournalEntry("end", 0.0, reason="trips")]),
        lambda: store.remember([]),
        lambda: store.forget(1),
        lambda: store.fact("new", "fact"),
        lambda: store.adopt("run"),
        lambda: store.restart_after(50),
    ):
        store.append([CHECK_IN])
        change()
        assert waits_for(store) == FULL


def test_entries_of_several_statements_are_one_transaction(store):
    entries = [JournalEntry("give_up", 1.0, trip=trip) for trip in range(2 * MOST_ROWS + 1)]
    assert store.append(entries) == len(entries)
    assert store.entries(0) == list(enumerate(entries, start=1))
    wrong = JournalEntry("deliver", 0.0, examples="many")
    with pytest.raises(StoreError, match="cannot store TEXT"):
        store.append([*entries, wrong])
    assert store.last == len(store.entries(0)) == len(entries)


def test_an_entry_of_the_wrong_type_is_refused_with_all_entries_of_its_transaction(store):
    with pytest.raises(StoreError, match=r"journal\.sqlite: cannot store TEXT"):
        store.append([CHECK_IN, JournalEntry("deliver", 0.0, examples="many")])
    assert store.entries(0) == []
    assert store.append([UPLOAD]) == 1


def test_a_checkpoint_moves_everything_out_of_the_write_ahead_log(store, tmp_path):
    store.append([UPLOAD])
    assert (tmp_path / f"{JOURNAL}-wal").stat().st_size > 0
    store.checkpoint()
    assert (tmp_path / f"{JOURNAL}-wal").stat().st_size == 0


def test_files_are_readable_by_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        with closing(SqliteStore(tmp_path)) as store:
            store.append([UPLOAD])
            store.write(0, np.zeros(4, np.uint8))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*")}
    finally:
        os.umask(old)
    assert modes.pop(UPLOADS) == 0o700
    assert len(modes) >= 4
    assert set(modes.values()) == {0o600}


def test_tables_of_an_older_version_are_given_the_columns_that_they_lack(tmp_path):
    with closing(SqliteStore(tmp_path)) as store:
        store.append([UPLOAD])
        store.remember([RecordedAnswer(0, "ann", b"d", {}, epoch=7)])
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        database.execute("ALTER TABLE entries DROP COLUMN epoch")
        database.execute("ALTER TABLE answers DROP COLUMN epoch")
    for _ in range(2):
        with closing(SqliteStore(tmp_path)) as store:
            assert store.entries(0) == [(1, UPLOAD)]
            assert store.answer(0) == RecordedAnswer(0, "ann", b"d", {}, epoch=0)


FIRST_VERSION = """
PRAGMA journal_mode=WAL;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE answers (
    trip INTEGER PRIMARY KEY, client TEXT NOT NULL, digest BLOB NOT NULL, answer TEXT NOT NULL) STRICT;
CREATE INDEX answers_by_client ON answers (client, trip);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, time REAL, client TEXT, trip INTEGER, file TEXT,
    examples INTEGER, steps INTEGER, loss REAL, digest BLOB, evaluated INTEGER, metrics TEXT, reason TEXT
) STRICT;
INSERT INTO facts VALUES ('format', 'tardigrad-journal-1'), ('run', 'abc'), ('forgotten', '6');
INSERT INTO answers VALUES (3, 'bob', x'00', '{"accepted": true}');
INSERT INTO entries VALUES
    (7, 'check_in', 1.5, 'ann', -1, '', 0, 0, 0.0, x'', 0, '{}', ''),
    (8, 'deliver', 2.5, 'ann', 4, '4-99-0', 3, 2, 0.25, x'ff', 5, '{"loss": 1.0}', '');
"""


def test_a_run_that_the_first_version_began_is_opened(tmp_path):
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        database.executescript(FIRST_VERSION)
    (tmp_path / UPLOADS).mkdir()
    payload = np.arange(12, dtype=np.uint8)
    payload.tofile(tmp_path / UPLOADS / "4-99-0")
    with closing(SqliteStore(tmp_path)) as store:
        upload = JournalEntry("deliver", 2.5, "ann", 4, "4-99-0", 3, 2, 0.25, b"\xff", 5, '{"loss": 1.0}')
        assert store.entries(0) == [(7, JournalEntry("check_in", 1.5, client="ann")), (8, upload)]
        assert (store.forgotten, store.last, store.fact("run", "new")) == (6, 8, "abc")
        assert store.answer(3) == RecordedAnswer(3, "bob", b"\0", {"accepted": True})
        assert (store.read("4-99-0", 12, digest(payload)) == payload).all()
        assert store.append([UPLOAD]) == 9


def test_a_database_in_another_format_is_refused(tmp_path):
    with closing(SqliteStore(tmp_path)):
        pass
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database, database:
        database.execute("UPDATE facts SET value = 'tardigrad-journal-9' WHERE name = 'format'")
    with pytest.raises(StoreError, match="not a tardigrad-journal-1 file"):
        SqliteStore(tmp_path)


def test_a_journal_has_all_entries_until_one_is_in_a_snapshot_alone(tmp_path):
    assert has_all_entries(tmp_path) is None
    with closing(SqliteStore(tmp_path)) as store:
        assert has_all_entries(tmp_path)
        store.append([CHECK_IN, UPLOAD])
        assert has_all_entries(tmp_path)
        store.forget(1)
        assert has_all_entries(tmp_path) is False
        store.forget(2)
        assert has_all_entries(tmp_path) is False


def test_a_damaged_journal_is_named(tmp_path):
    (tmp_path / JOURNAL).write_bytes(b"SQLite format 3\0 no more")
    with pytest.raises(td.RunError, match=r"journal\.sqlite is damaged"):
        has_all_entries(tmp_path)
    with pytest.raises(td.RunError, match=r"journal\.sqlite is damaged"):
        SqliteStore(tmp_path)


def test_a_run_that_has_lost_its_snapshot_is_not_begun_again(tmp_path):
    check_whole(tmp_path)  # the folder is empty
    (tmp_path / "events.jsonl").write_text('{"event": "start"}\n')
    check_whole(tmp_path)  # killed at once
    (tmp_path / "events.jsonl").write_text('{"event": "start"}\n{"event": "upload", "trip": 0}\n')
    with pytest.raises(td.RunError, match=r"snapshot\.safetensors is gone"):
        check_whole(tmp_path)
    with closing(SqliteStore(tmp_path)) as store:
        store.append([CHECK_IN, UPLOAD])
        check_whole(tmp_path)  # killed before the first snapshot: the journal has all of it
        store.forget(1)
        with pytest.raises(td.RunError, match=r"snapshot\.safetensors is gone"):
            check_whole(tmp_path)
    (tmp_path / "snapshot.safetensors").touch()
    check_whole(tmp_path)


def test_a_store_that_was_removed_leaves_no_file(tmp_path):
    (tmp_path / "summary.json").touch()
    with closing(SqliteStore(tmp_path)) as store:
        store.append([UPLOAD])
    remove_store(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_a_large_payload_is_mapped_and_checked_against_size_and_digest(tmp_path, monkeypatch):
    monkeypatch.setattr("tardigrad.service.store.upload_files.IN_MEMORY", 100)
    payload = np.arange(1000, dtype=np.uint8)
    with closing(SqliteStore(tmp_path)) as store:
        name = store.write(1, payload)
        file = tmp_path / UPLOADS / name
        found = store.read(name, 1000, digest(payload))
        assert (found == payload).all()
        found[0] += 1  # the caller's own: the file stays as it is
        assert file.read_bytes() == payload.tobytes()
        for spoilt in (payload[:-1], np.append(payload, payload[:1]), payload[::-1]):
            file.write_bytes(spoilt.tobytes())
            with pytest.raises(StoreError, match="not what was acknowledged"):
                store.read(name, 1000, digest(payload))
        file.unlink()
        with pytest.raises(StoreError, match="is gone"):
            store.read(name, 1000, digest(payload))


def test_large_files_are_deleted_and_small_ones_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tardigrad.service.store.upload_files.LARGEST_SPARE", 100)
    with closing(SqliteStore(tmp_path)) as store:
        small, large = (store.write(n, np.zeros(size, np.uint8)) for n, size in enumerate((100, 101)))
        store.recycle([small, large])
        assert [file.name for file in (tmp_path / UPLOADS).iterdir()] == [small]
        assert store.write(2, np.ones(100, np.uint8)) == small


def test_a_store_that_is_opened_again_by_the_same_process_number_finds_free_names(tmp_path):
    """As in a container, where the server always has the same number."""
    payload, names = np.arange(100, dtype=np.uint8), []
    for _ in range(2):
        store = SqliteStore(tmp_path)
        names += [*store.write_together([payload]), store.write(0, payload)]
        store.close()
    assert len(set(names)) == 4
