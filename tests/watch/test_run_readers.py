"""Where runs come from: folders, comparisons, and the words of a server."""

import asyncio
import os

import pytest
from page_server import append
from some_events import a_run

from tardigrad.errors import ConfigError, RunError
from tardigrad.service.monitor.status import Status, write_status
from tardigrad.watch import run_readers
from tardigrad.watch.panels import PANELS, curves, facts, refusals
from tardigrad.watch.run_readers import FolderReader, WatchedFolders
from tardigrad.watch.server_reader import ServerReader


def told(version, trips, over="", **others):
    """What a server tells."""
    return Status(
        version=version, trips=trips, time=2.0 * trips, in_flight=3, waiting=2, staleness=1.5, given_up=1,
        uploads_refused={"norm too large": 4}, metrics=others.pop("metrics", {}), over=over, written=0.0,
        **others,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def look_always(monkeypatch):
    monkeypatch.setattr(run_readers, "SCAN_SECONDS", 0.0)


def names(readers):
    return [reader.run.name for reader in readers]


def test_the_runs_of_a_comparison_are_found_as_they_come(tmp_path):
    append(tmp_path / "Fed-Buff-seed0-0123abcd", a_run())
    watched = WatchedFolders([tmp_path])
    first = watched.new_readers()
    assert names(first) == ["Fed-Buff, seed 0"]
    assert (first[0].run.entry, first[0].run.seed) == ("Fed-Buff", 0)
    assert watched.new_readers() == []
    append(tmp_path / "Fed-Buff-seed1-0123abcd", a_run())
    append(tmp_path / "deeper" / "run", a_run())
    assert names(watched.new_readers()) == ["Fed-Buff, seed 1", "run"]


def test_a_folder_that_is_a_run_is_one(tmp_path):
    append(tmp_path, a_run())
    append(tmp_path / "inside", a_run())
    assert names(WatchedFolders([tmp_path]).new_readers()) == [tmp_path.name]


def test_links_to_the_outside_are_not_followed(tmp_path):
    append(tmp_path / "outside", a_run())
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "linked").symlink_to(tmp_path / "outside")
    (inside / "file").mkdir()
    (inside / "file" / "events.jsonl").symlink_to(tmp_path / "outside" / "events.jsonl")
    assert WatchedFolders([inside]).new_readers() == []


def test_no_more_runs_are_shown_than_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_readers, "MOST_RUNS", 3)
    for number in range(5):
        append(tmp_path / f"run{number}", a_run(trips=3))
    watched = WatchedFolders([tmp_path])
    assert len(watched.new_readers()) == 3
    assert watched.unlisted


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        WatchedFolders([tmp_path / "none"])


def test_a_run_that_is_cut_back_begins_again(tmp_path):
    append(tmp_path, a_run(trips=60))
    reader = FolderReader(tmp_path)
    reader.read()
    assert reader.run.position.trips == 60
    (tmp_path / "events.jsonl").unlink()
    append(tmp_path, a_run(trips=20, end=False))
    reader.read()
    assert reader.run.position.trips == 20
    assert reader.run.over is None


def test_config_status_and_disk_of_a_folder_are_read(tmp_path):
    append(tmp_path, a_run(end=False))
    (tmp_path / "config.toml").write_text(
        "[stop]\ntrips = 120\n[buffer]\nsize = 4\n[algorithm]\nkind = 'fedbuff'\n"
    )
    write_status(tmp_path, told(3, 9, last_seen={"client-1": 7.0}, at_work={"client-1": 2}))
    reader = FolderReader(tmp_path)
    assert not reader.read()
    found = facts(reader.run)
    assert (found["buffer"], found["algorithm"], found["in_flight"]) == (4, "fedbuff", 3)
    assert found["left"]["done"] == 0.5
    assert reader.run.disk["events"] == (tmp_path / "events.jsonl").stat().st_size
    page = reader.run.clients.page("client-1", "trips", True, 0, reader.run.status)
    assert page["rows"][0]["ago"] == 7.0
    assert page["rows"][0]["at_work"] == 2


def test_damaged_files_beside_the_events_do_no_harm(tmp_path):
    append(tmp_path, a_run(end=False))
    (tmp_path / "config.toml").write_text("no [ toml")
    (tmp_path / "status.json").write_text("{")
    reader = FolderReader(tmp_path)
    reader.read()
    assert facts(reader.run)["trips"] == 60
    assert "status.json is damaged" in facts(reader.run)["problem"]


def test_a_server_s_words_become_curves_and_counts():
    async def source(offset):
        yield told(0, 0)
        yield told(2, 20, metrics={"accuracy": 0.25, "loss": 2.0})
        yield told(3, 31, metrics={"accuracy": 0.25, "loss": 2.0})
        yield told(5, 52, metrics={"accuracy": 0.5, "loss": None})
        yield told(6, 60, over="trips", metrics={"accuracy": 0.5, "loss": None})

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    found = facts(reader.run)
    assert (found["version"], found["trips"], found["state"], found["reason"]) == (6, 60, "over", "trips")
    assert curves(reader.run)["over"]["trips"] == [20, 52]
    assert curves(reader.run)["metrics"]["accuracy"] == [0.25, 0.5]
    assert refusals(reader.run)["rows"][0] == {
        "what": "upload",
        "reason": "norm too large",
        "count": 4,
        "last": None,
    }
    assert all(panel(reader.run) is not None for panel in PANELS.values())
    assert found["progress_only"]
    assert found["refused"] == 4
    assert [found[name] for name in ("accepted", "fill", "clients")] == [None] * 3  # not told, so not 0
    assert refusals(reader.run)["accepted"] is None


def test_trips_before_the_page_was_opened_are_no_pace():
    async def source(offset):
        yield

    reader = ServerReader("host:1", source)
    reader.run.tick(0.0)
    reader.take(told(400, 1200))
    reader.run.tick(1.0)
    assert facts(reader.run)["rate"] is None
    reader.take(told(402, 1206))
    reader.run.tick(3.0)
    assert facts(reader.run)["rate"] == 3.0


def test_a_server_that_refuses_is_quoted():
    async def source(offset):
        yield told(1, 10)
        raise RunError("nobody listens on host:1")

    reader = ServerReader("host:1", source)
    asyncio.run(reader.follow())
    assert facts(reader.run)["state"] == "silent"
    assert facts(reader.run)["problem"] == "nobody listens on host:1"


def test_a_server_that_refuses_at_once_is_quoted():
    async def source(offset):
        raise ConfigError("this server has several runs; name one of a, b (--run NAME)")
        yield

    reader = ServerReader("host:1", source)
    assert facts(reader.run)["state"] == "waiting"
    asyncio.run(reader.follow())
    assert facts(reader.run)["state"] == "silent"
    assert "name one of a, b" in facts(reader.run)["problem"]


def test_an_old_run_that_never_ended_is_silent(tmp_path):
    append(tmp_path, a_run(end=False))
    reader = FolderReader(tmp_path)
    reader.read()
    assert facts(reader.run)["state"] == "running"
    os.utime(tmp_path / "events.jsonl", (1e9, 1e9))
    reader.read()
    assert facts(reader.run)["state"] == "silent"
    assert facts(reader.run)["silence"] > 1e7
