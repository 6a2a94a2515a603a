"""Where the page's runs come from: run folders, folders of runs, and servers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.service.monitor.following import Followed, FollowedConfig, FollowedEvents, FollowedRestart
from tardigrad.service.monitor.status import FILE, Status, read_status
from tardigrad.watch.event_lines import EventLines
from tardigrad.watch.event_tail import EventTail
from tardigrad.watch.watched_run import WatchedRun

EVENTS = "events.jsonl"
MOST_RUNS = 100
"""Runs that are shown at most."""
DEEP = 2
"""How many levels below a folder runs are searched."""
SEED = re.compile(r"(?P<entry>.+)-seed(?P<seed>\d+)-[0-9a-f]{8,}")
"""The folder of one run of a comparison."""
DISK_SECONDS, SCAN_SECONDS = 10.0, 2.0
AWAY_SECONDS = 10.0
"""Seconds between two attempts to reach a server that is away."""
MUCH = 1 << 19
"""Bytes of events at once that mean that more are to come."""


class FolderReader:
    """Reads the folder of one run."""

    def __init__(self, folder: Path) -> None:
        found = SEED.fullmatch(folder.name)
        self.folder = folder
        self.run = (
            WatchedRun(f"{found['entry']}, seed {found['seed']}", found["entry"], int(found["seed"]))
            if found
            else WatchedRun(folder.name)
        )
        self._tail = EventTail(folder / EVENTS)
        self._config_time = -1.0
        self._looked = -DISK_SECONDS

    def read(self) -> bool:
        """Read a piece of what is new; return whether there is more."""
        run = self.run
        found = self._tail.read()
        if found.again:
            run.begin()
        run.take(found.events)
        run.damaged = self._tail.damaged
        run.heard = self._tail.written or run.heard
        more = self._tail.behind > 0 and bool(found.events)
        run.reading = self._tail.share if more else 1.0
        if not more:
            self._read_others()
        return more

    def _read_others(self) -> None:
        """Read the config if it has changed, the server's status, and the sizes on disk."""
        run, now = self.run, time.monotonic()
        try:
            written = (self.folder / "config.toml").stat().st_mtime
            if written != self._config_time:
                run.config = tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))
                self._config_time = written
        except (OSError, ValueError):
            pass  # it may come later
        if (self.folder / FILE).exists():
            try:
                run.status = read_status(self.folder)
            except TardigradError as error:
                run.problem = str(error)
            else:
                run.problem = ""
        if now - self._looked >= DISK_SECONDS:
            self._looked = now
            run.disk = _disk(self.folder)


class ServerReader:
    """Takes what a server tells over the network: everything to an operator, but neither names nor single
    uploads to any other client."""

    def __init__(self, address: str, source: Callable[[int], AsyncIterator[Followed]]) -> None:
        """`source` opens the stream of what the server tells, with the events from an offset on."""
        self.run = WatchedRun(address)
        self._source = source
        self._metrics: dict[str, float | None] = {}
        self._lines = EventLines()
        self._offset = 0
        self._all = False  # the server tells everything

    async def follow(self) -> None:
        """Take what comes until the run is over or the server says why it tells nothing. A server that told
        everything and is away is asked again."""
        while True:
            try:
                async for part in self._source(self._offset):
                    self.run.problem = ""
                    self._take(part)
                return
            except TardigradError as error:
                self.run.problem = str(error)
                if not self._all or isinstance(error, ConfigError):
                    return
            await asyncio.sleep(AWAY_SECONDS)

    def _take(self, part: Followed) -> None:
        run = self.run
        match part:
            case FollowedConfig():
                self._all = run.started = True
                with suppress(ValueError):
                    run.config = tomllib.loads(part.text)
            case FollowedRestart():
                self._lines, self._offset = EventLines(), 0
                run.begin()
            case FollowedEvents():
                self._offset = part.offset
                run.take(self._lines.take(part.lines))
                run.damaged = self._lines.damaged
                trips = 0 if run.status is None else run.status.trips
                more = len(part.lines) > MUCH and trips > run.position.trips
                run.reading = run.position.trips / trips if more else 1.0
            case Status() if self._all:
                run.status, run.heard = part, time.time()
            case Status():
                self.take(part)

    def take(self, status: Status) -> None:
        """Note a status that is all that is told."""
        run = self.run
        events: list[Event] = []
        run.started = True
        if status.metrics and status.metrics != self._metrics:
            self._metrics = dict(status.metrics)
            events.append(
                ModelEvaluated(status.version, status.trips, status.time, metrics=dict(status.metrics))
            )
        if status.version > run.position.version:
            events.append(ModelMoved(status.version, status.trips, status.time))
        if status.over:
            events.append(RunEnded(status.over, status.version, status.trips, status.time))
        run.status, run.heard = status, time.time()
        run.take(events)
        run.position = run.position._replace(trips=status.trips, time=status.time)
        run.given_up = status.given_up


class WatchedFolders:
    """All runs in some folders. Runs that appear later are found, too."""

    def __init__(self, folders: list[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: there is no such folder")
        self._roots = [folder.resolve() for folder in folders]
        self._known: dict[Path, FolderReader] = {}
        self._looked = -SCAN_SECONDS
        self.unlisted = False
        """Whether there are more runs than are shown."""

    def new_readers(self) -> list[FolderReader]:
        """Look for runs that were not there before, at most every other second, and return their readers."""
        if time.monotonic() - self._looked < SCAN_SECONDS:
            return []
        self._looked, before = time.monotonic(), len(self._known)
        for root in self._roots:
            for folder in sorted(_runs_in(root, DEEP)):
                if folder in self._known:
                    continue
                if len(self._known) >= MOST_RUNS:
                    self.unlisted = True
                    break
                self._known[folder] = FolderReader(folder)
        return list(self._known.values())[before:]


def _runs_in(folder: Path, deep: int) -> list[Path]:
    """Return the folders of runs in a folder. Links are not followed, so that nothing outside is read."""
    if (folder / EVENTS).is_file() and not (folder / EVENTS).is_symlink():
        return [folder]
    if deep == 0:
        return []
    try:
        inner = [Path(one.path) for one in os.scandir(folder) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [run for one in inner for run in _runs_in(one, deep - 1)]


def _disk(folder: Path) -> dict[str, int]:
    try:
        sizes = {
            one.name: one.stat(follow_symlinks=False).st_size
            for one in os.scandir(folder)
            if one.is_file(follow_symlinks=False)
        }
        return {
            "free": shutil.disk_usage(folder).free,
            "events": sizes.get(EVENTS, 0),
            "snapshot": sizes.get("snapshot.safetensors", 0),
            "journal": sum(size for name, size in sizes.items() if name.startswith("journal.sqlite")),
            "files": sum(sizes.values()),
        }
    except OSError:
        return {}
