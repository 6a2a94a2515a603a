"""The journal: what is on disk when it says so."""

import sqlite3

import pytest

import tardigrad as td
from tardigrad.service.journal import Entry, Journal, is_whole
from tardigrad.service.serving import check_whole

NORMAL, FULL = 1, 2  # what SQLite calls giving it to the system, and waiting for the disk
TICKET = Entry("check_in", 0.0, client="ann")
UPLOAD = Entry("deliver", 1.0, client="ann", trip=0, file="0.upload", digest=b"d")


def waits_for(journal):
    return journal._database.execute("PRAGMA synchronous").fetchone()[0]


def test_uploads_are_waited_for_and_tickets_are_not(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    assert journal.append([TICKET]) == 1
    assert waits_for(journal) == NORMAL
    assert journal.append([TICKET, UPLOAD]) == 3
    assert waits_for(journal) == FULL
    journal.append([TICKET])
    for matters in (
        lambda: journal.append([Entry("give_up", 0.0, trip=0)]),
        lambda: journal.append([Entry("end", 0.0, reason="trips")]),
        lambda: journal.remember([]),
        lambda: journal.forget(1),
        lambda: journal.fact("new", "fact"),
    ):
        journal.append([TICKET])
        matters()
        assert waits_for(journal) == FULL


def test_what_was_appended_is_there_without_a_farewell(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    journal.append([TICKET])
    journal.append([UPLOAD, TICKET])
    again = Journal(tmp_path / "journal.db")  # as after a kill: the first was never closed
    assert again.entries(0) == [(1, TICKET), (2, UPLOAD), (3, TICKET)]
    assert again.entries(2) == [(3, TICKET)]


def test_it_is_whole_until_something_is_in_a_snapshot_alone(tmp_path):
    file = tmp_path / "journal.sqlite"
    journal = Journal(file)
    assert is_whole(file)
    journal.append([TICKET, UPLOAD])
    assert is_whole(file)
    journal.forget(1)
    assert not is_whole(file)
    journal.forget(2)
    assert not is_whole(file)
    (tmp_path / "junk").write_bytes(b"SQLite format 3\0 no more")
    with pytest.raises(td.RunError, match="junk is damaged"):
        is_whole(tmp_path / "junk")


def test_a_run_that_has_lost_its_snapshot_is_not_begun_again(tmp_path):
    check_whole(tmp_path)  # nothing is there
    (tmp_path / "events.jsonl").write_text('{"event": "start"}\n')
    check_whole(tmp_path)  # killed at once
    (tmp_path / "events.jsonl").write_text('{"event": "start"}\n{"event": "upload", "trip": 0}\n')
    with pytest.raises(td.RunError, match=r"snapshot\.safetensors is gone"):
        check_whole(tmp_path)
    journal = Journal(tmp_path / "journal.sqlite")
    journal.append([TICKET, UPLOAD])
    check_whole(tmp_path)  # killed before the first snapshot: the journal has all of it
    journal.forget(1)
    with pytest.raises(td.RunError, match=r"snapshot\.safetensors is gone"):
        check_whole(tmp_path)
    (tmp_path / "snapshot.safetensors").touch()
    check_whole(tmp_path)


def test_all_or_none(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(sqlite3.Error):
        journal.append([TICKET, Entry("deliver", 0.0, examples="many")])
    assert journal.entries(0) == []
    assert journal.append([UPLOAD]) == 1
