"""Where the page's runs come from: run folders and folders of runs (servers: server_reader.py)."""

from __future__ import annotations

import os
import re
import shutil
import time
import tomllib
from pathlib import Path

from tardigrad.errors import ConfigError, TardigradError
from tardigrad.service.monitor.status import FILE, read_status
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
LARGEST_CONFIG = 1 << 20
"""Bytes of a config.toml; a larger one is not read."""


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
        more = self._tail.behind > 0 and found.size > 0
        run.reading = self._tail.share if more else 1.0
        if not more:
            self._read_others()
        return more

    def _read_others(self) -> None:
        """Read the config if it has changed, the server's status, and the sizes on disk."""
        run, now = self.run, time.monotonic()
        try:
            found = (self.folder / "config.toml").stat()
            if found.st_mtime != self._config_time:
                self._config_time = found.st_mtime
                if found.st_size <= LARGEST_CONFIG:
                    run.config = parsed_config((self.folder / "config.toml").read_text(encoding="utf-8"))
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


def parsed_config(text: str) -> dict[str, object]:
    """Return the content of a config; {} if it is none."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


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
