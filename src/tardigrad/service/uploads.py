"""Uploads on disk, from the moment they are acknowledged until a snapshot has them in it."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tardigrad.errors import RunError
from tardigrad.service.layout import digest

SPARE = 256
"""Files that are kept to be written over: that is several times as fast as making new ones, for which the
file system has more to write down than the values."""


class UploadFiles:
    """A folder with a file for each upload. Writing and syncing may go on in several threads at once."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder nothing is kept."""
        self._folder = folder
        self._numbers = itertools.count()
        self._spare: deque[str] = deque()
        self._made = threading.Event()  # names that are not safe yet
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def kept(self) -> bool:
        """Whether anything is."""
        return self._folder is not None

    def write(self, trip: int, room: np.ndarray) -> str:
        """Put an upload on disk; the name of its file. An OSError leaves nothing behind."""
        if self._folder is None:
            return ""
        name, descriptor = self._open(trip)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = room.data
                while view:
                    view = view[file.write(view) or 0 :]
                os.fdatasync(file.fileno())
        except OSError:
            self.discard(name)
            raise
        return name

    def _open(self, trip: int) -> tuple[str, int]:
        assert self._folder is not None
        try:
            name = self._spare.popleft()
            return name, os.open(self._folder / name, os.O_WRONLY)
        except (IndexError, FileNotFoundError):
            name = f"{trip}-{os.getpid()}-{next(self._numbers)}"
            descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._made.set()
            return name, descriptor

    def sync(self) -> None:
        """The names of the files must last, too."""
        if self._folder is not None and self._made.is_set():
            self._made.clear()
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError:
                self._made.set()
                raise
            finally:
                os.close(descriptor)

    def read(self, name: str, size: int, sha: bytes) -> np.ndarray:
        """An upload that the journal speaks of, if it is still the same."""
        assert self._folder is not None
        file = self._folder / name
        try:
            room = np.fromfile(file, np.uint8)
        except OSError as error:
            raise RunError(f"{file} is gone, but the journal needs it ({error}); start a new run") from None
        if len(room) != size or digest(room) != sha:
            raise RunError(f"{file} is not what was acknowledged, of {size} bytes; start a new run")
        return room

    def recycle(self, names: Iterable[str]) -> None:
        """A snapshot has what is in these: others may be written over them."""
        for name in names:
            if len(self._spare) < SPARE:
                self._spare.append(name)
            else:
                self.discard(name)

    def discard(self, name: str) -> None:
        """Nobody needs this one any more, nor its room on the disk."""
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: set[str]) -> None:
        """After a crash: what was never acknowledged goes."""
        if self._folder is not None:
            for file in self._folder.iterdir():
                if file.name not in names:
                    self.discard(file.name)
