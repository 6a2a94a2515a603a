"""What a server tells an operator becomes the page of the run's folder."""

import asyncio
import io
import random
import time
from dataclasses import replace

from page_server import append
from some_events import a_run
from test_run_readers import told

from tardigrad.core.event_log import read_events, write_events
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.monitor.following import FollowedConfig, FollowedEvents, FollowedRestart
from tardigrad.watch import event_lines, server_reader
from tardigrad.watch.event_lines import EventLines
from tardigrad.watch.panels import PANELS, facts
from tardigrad.watch.run_readers import FolderReader
from tardigrad.watch.server_reader import ServerReader


def bytes_of(events):
    file = io.BytesIO()
    write_events(file, events)
    return file.getvalue()


def pieces_of(content, most=700, seed=1):
    draws, at = random.Random(seed), 0
    while at < len(content):
        end = min(len(content), at + draws.randrange(1, most))
        yield FollowedEvents(content[at:end], end)
        at = end


def test_the_page_of_an_operator_is_that_of_the_folder(tmp_path):
    events = a_run(trips=200, end=False)
    append(tmp_path, events)
    (tmp_path / "config.toml").write_text("[stop]\ntrips = 300\n")
    folder = FolderReader(tmp_path)
    while folder.read():
        pass
    status = replace(told(15, 200, last_seen={"client-1": 2.0}, at_work={"client-1": 3}), written=time.time())

    async def source(offset):
        assert offset == 0
        yield FollowedConfig("[stop]\ntrips = 300\n")
        yield status
        for piece in pieces_of(bytes_of(events)):
            yield piece

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    folder.run.status = status
    folder.run.name = "host:1"
    for name, panel in PANELS.items():
        if name != "network":  # the folder also has its disk
            assert panel(reader.run) == panel(folder.run), name
    page = reader.run.clients.page("", "client", False, 0, status)
    assert page == folder.run.clients.page("", "client", False, 0, status)


def test_a_server_that_was_away_is_asked_from_the_last_offset_on(monkeypatch):
    monkeypatch.setattr(server_reader, "AWAY_SECONDS", 0.0)
    content, asked = bytes_of(a_run(trips=100)), []
    middle = content.index(b"\n", 2000) + 1

    async def source(offset):
        asked.append(offset)
        yield FollowedConfig("")
        if offset == 0:
            yield FollowedEvents(content[:middle], middle)
            raise RunError("nobody listens on host:1")
        yield FollowedEvents(content[offset:], len(content))

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    assert asked == [0, middle]
    assert facts(reader.run)["trips"] == 100
    assert facts(reader.run)["problem"] == ""


def test_a_key_that_is_refused_is_not_asked_again():
    async def source(offset):
        yield FollowedConfig("")
        raise ConfigError("the server refused: this operator is not enrolled")

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    assert "not enrolled" in facts(reader.run)["problem"]


def test_events_that_begin_anew_replace_those_before():
    async def source(offset):
        yield FollowedConfig("")
        yield FollowedEvents(bytes_of(a_run(trips=90, end=False)) + b'{"half', 9000)
        yield FollowedRestart()
        yield FollowedEvents(bytes_of(a_run(trips=40, end=False)), 4000)

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    assert facts(reader.run)["trips"] == 40
    assert facts(reader.run)["damaged"] == 0


def test_lines_in_any_pieces_are_the_events_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(event_lines, "LONGEST", 2000)
    append(tmp_path, a_run())
    expected = list(read_events(tmp_path / "events.jsonl"))
    content = (tmp_path / "events.jsonl").read_bytes()
    odd = b"x" * 9000 + b"\n" + content[:500] + b"\xff\x00\n" + content
    for seed in range(20):
        lines, found = EventLines(), []
        for piece in pieces_of(odd, seed=seed):
            found += lines.take(piece.lines)
            assert len(lines._rest) <= 2000
        assert found[-len(expected) :] == expected
        assert lines.damaged == 2


def test_a_run_that_has_failed_is_told_as_failed_and_followed_when_it_is_started_again(monkeypatch):
    monkeypatch.setattr(server_reader, "AWAY_SECONDS", 0.0)
    states, statuses = [], [told(3, 9, failed="the disk has burnt"), told(3, 9), told(4, 12, over="trips")]

    async def source(_):
        states.append(reader.run.state())
        yield FollowedConfig("")
        yield replace(statuses.pop(0), written=time.time())
        if not statuses[1:]:
            yield replace(statuses.pop(0), written=time.time())

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    assert states == ["waiting", "failed"]
    assert reader.run.state() == "over"
