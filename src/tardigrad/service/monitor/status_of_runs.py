"""The status of all runs in a folder, as `tardigrad status` shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from tardigrad.errors import ConfigError
from tardigrad.service.monitor.status import FILE, SECONDS, Status, read_status


async def watch_one(source: AsyncIterator[Status], name: str) -> AsyncIterator[dict[str, Status]]:
    """Yield the status of one run by its name."""
    async for status in source:
        yield {name: status}


async def watch_folders(folder: Path, run: str | None = None) -> AsyncIterator[dict[str, Status]]:
    """Read the status of the run in a folder, or of each run in a folder of runs by its name, every second
    until all have ended. `run`: the name of the only one to read."""
    if (folder / FILE).exists() and run is None:
        folders = {"": folder}
    elif run is not None:
        folders = {run: folder / run}
        if not folders[run].is_dir():
            raise ConfigError(f"--run {run}: there is no such run in {folder}")
    else:
        folders = {found.parent.name: found.parent for found in sorted(folder.glob(f"*/{FILE}"))}
    while True:
        found = {name: read_status(path) for name, path in (folders or {"": folder}).items()}
        yield found
        if all(status.ended for status in found.values()):
            return
        await asyncio.sleep(SECONDS)
