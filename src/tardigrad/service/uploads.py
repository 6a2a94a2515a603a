"""Uploads on disk, from the moment they are acknowledged until a snapshot has them in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tardigrad.errors import RunError


class UploadFiles:
    """A folder with a file for each upload. Writing and syncing may go on in several threads at once."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder nothing is kept."""
        self._folder = folder
        self._numbers = itertools.count()
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    def write(self, trip: int, room: np.ndarray) -> str:
        """Put an upload on disk; the name of its file. An OSError leaves nothing behind."""
        if self._folder is None:
            return ""
        name = f"{trip}-{os.getpid()}-{next(self._numbers)}"
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = room.data
                while view:
                    view = view[file.write(view) or 0 :]
                os.fsync(file.fileno())
        except OSError:
            self.discard([name])
            raise
        return name

    def sync(self) -> None:
        """The names of the files must last, too."""
        if self._folder is not None:
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, name: str, size: int) -> np.ndarray:
        """An upload that the journal speaks of."""
        assert self._folder is not None
        file = self._folder / name
        try:
            room = np.fromfile(file, np.uint8)
        except OSError as error:
            raise RunError(f"{file} is gone, but the journal needs it ({error}); start a new run") from None
        if len(room) != size:
            raise RunError(f"{file} has {len(room)} bytes where {size} were acknowledged; start a new run")
        return room

    def discard(self, names: Iterable[str]) -> None:
        """Nobody needs these any more."""
        if self._folder is not None:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: set[str]) -> None:
        """After a crash: what was never acknowledged goes."""
        if self._folder is not None:
            self.discard(file.name for file in self._folder.iterdir() if file.name not in names)
