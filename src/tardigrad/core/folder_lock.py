"""The lock of a run's folder: one process at a time, and one run at a time within a process.

It is a POSIX lock (`lockf`) rather than one of the filelock package, which uses `flock`. Forked workers
inherit a
`flock`, so that after a SIGKILL of the run its orphaned workers would keep the folder locked.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from tardigrad.errors import ConfigError

LOCK = ".lock"
_IN_USE: set[Path] = set()  # by this process, because POSIX locks are between processes


class FolderLock:
    """Holds a folder between `acquire` and `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TextIO | None = None

    def acquire(self) -> None:
        """Lock the folder, which must exist, or raise a ConfigError if it is in use."""
        busy = f"--out {self._folder}: somebody else is running it right now"
        if self._folder.resolve() in _IN_USE:  # closing a second file of this process would unlock the first
            raise ConfigError(busy)
        try:
            file = (self._folder / LOCK).open("w")
        except OSError as error:
            raise ConfigError(f"--out {self._folder}: cannot be written to ({error})") from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ConfigError(busy) from None
        _IN_USE.add(self._folder.resolve())
        self._file = file

    def release(self) -> None:
        """Unlock the folder if it is locked."""
        if self._file is not None:
            self._file.close()
            self._file = None
            _IN_USE.discard(self._folder.resolve())
