"""Reading a growing file of events piece by piece."""

import random

import pytest
from some_events import a_run

from tardigrad.core.event_log import read_events, write_events
from tardigrad.watch import event_tail
from tardigrad.watch.event_tail import EventTail


@pytest.fixture
def whole(tmp_path):
    """A file of events, and its bytes."""
    file = tmp_path / "whole.jsonl"
    with file.open("wb") as out:
        write_events(out, a_run())
    return file


def everything(tail):
    found = []
    while True:
        new = tail.read()
        found = list(new.events) if new.again else found + new.events
        if not tail.behind or not new.events:
            return found


def test_a_file_that_grows_by_any_pieces_gives_each_event_once(tmp_path, whole):
    content, growing = whole.read_bytes(), tmp_path / "events.jsonl"
    expected = list(read_events(whole))
    for seed in range(20):
        draws = random.Random(seed)
        tail, found, at = EventTail(growing), [], 0
        growing.write_bytes(b"")
        while at < len(content):
            more = draws.randrange(1, 700)
            with growing.open("ab") as out:
                out.write(content[at : at + more])
            at += more
            found += tail.read().events
        assert found == expected
        assert tail.damaged == 0
        assert tail.share == 1.0


def test_a_file_larger_than_a_piece_is_read_in_pieces(whole, monkeypatch):
    monkeypatch.setattr(event_tail, "PIECE", 1000)
    tail = EventTail(whole)
    assert len(tail.read().events) < 10
    assert 0 < tail.share < 1
    assert everything(EventTail(whole)) == list(read_events(whole))


def test_a_file_that_is_cut_back_is_read_again(tmp_path, whole):
    content, file = whole.read_bytes(), tmp_path / "events.jsonl"
    lines = content.splitlines(keepends=True)
    file.write_bytes(content)
    tail = EventTail(file)
    everything(tail)
    file.write_bytes(b"".join(lines[:10]))
    new = tail.read()
    assert new.again
    assert new.events == list(read_events(whole))[:10]


def test_a_file_that_was_replaced_by_a_longer_one_is_read_again(tmp_path, whole):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:10]))
    tail = EventTail(file)
    tail.read()
    with file.open("wb") as out:
        write_events(out, a_run(clients=3))
    new = tail.read()
    assert new.again
    assert new.events == a_run(clients=3)


def test_damaged_lines_are_counted_and_left_out(tmp_path, whole):
    file = tmp_path / "events.jsonl"
    lines = whole.read_bytes().splitlines(keepends=True)
    lines[3], lines[5] = b"\xff\xfe{not json}\n", b'{"event": "nothing"}\n'
    file.write_bytes(b"".join(lines))
    tail = EventTail(file)
    assert len(everything(tail)) == len(lines) - 2
    assert tail.damaged == 2


def test_a_line_without_end_is_skipped_in_bounded_memory(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(event_tail, "PIECE", 1000)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"x" * 4500 + b"\n" + whole.read_bytes())
    tail, found = EventTail(file), []
    for _ in range(100):
        found += tail.read().events
    assert found == list(read_events(whole))
    assert tail.damaged == 1


def test_a_file_that_is_not_there_has_no_events(tmp_path):
    tail = EventTail(tmp_path / "none.jsonl")
    assert tail.read() == ([], False, 0)
    assert tail.share == 1.0
