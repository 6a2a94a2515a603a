"""The journal: what is on disk when it says so."""

import sqlite3

import pytest

from tardigrad.service.journal import Entry, Journal

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


def test_all_or_none(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(sqlite3.Error):
        journal.append([TICKET, Entry("deliver", 0.0, examples="many")])
    assert journal.entries(0) == []
    assert journal.append([UPLOAD]) == 1
