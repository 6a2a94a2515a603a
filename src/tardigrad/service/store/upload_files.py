"""Payloads as files, which are kept until a snapshot contains them: of uploads, and of what the helpers of a
secure run release, which is shorter."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path

import numpy as np

from tardigrad.core.files import write_over
from tardigrad.service.protocol.wire import digest as digest_of
from tardigrad.service.store.contract import StoreError
from tardigrad.service.store.direct_write import write_direct
from tardigrad.service.store.payload_file import PayloadFile, as_array, digest_of_file, mapped

SPARE = 256
"""Files that are kept to be overwritten. That is several times as fast as creating new ones, for which the
file system writes more metadata than the payload has bytes."""
LARGEST_SPARE = 1 << 24
"""Larger files are deleted: they would take much space, and gain little time."""
AT = "@"
"""Stands between the name of a file and the place in it, in the name of a payload that shares its file."""
IN_MEMORY = 1 << 24
"""Larger payloads are not read into memory, but mapped."""


class UploadFiles:
    """The payload methods of a store: a folder with one file for each upload. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._process = secrets.token_hex(4)  # in a container, every process may have the same number
        self._spare: deque[str] = deque()
        self._places: dict[str, set[int]] = {}  # by file: where payloads begin that are still needed
        self._lock = threading.Lock()
        self._made = threading.Event()  # a file was created whose name is not synced yet
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error}); start a new run") from None

    def write(self, trip: int, payload: np.ndarray) -> str:
        """Write an upload to disk, sync it, and return the name of its file."""
        return self._write(trip, [payload])

    def write_together(self, payloads: Sequence[np.ndarray]) -> list[str]:
        """Write small uploads into one file, sync it once, and return their names."""
        name = self._write("together", payloads)
        places = [0, *accumulate(payload.nbytes for payload in payloads)][:-1]
        with self._lock:
            self._places[name] = set(places)
        return [f"{name}{AT}{place}" for place in places]

    def _write(self, trip: int | str, payloads: Sequence[np.ndarray]) -> str:
        name = None
        try:
            name, descriptor = self._open(trip)
            with FileIO(descriptor, "wb") as file:
                first, *others = payloads
                file.seek(write_direct(descriptor, first))
                write_over(file, first.data[file.tell() :], *(one.data for one in others))
        except OSError as error:
            if name is not None:
                self.discard(name)
            raise _failed(self._folder, error) from error
        return name

    def _open(self, trip: int | str) -> tuple[str, int]:
        """Open a spare file or create one; return its name and a descriptor."""
        try:
            name = self._spare.popleft()
            return name, os.open(self._folder / name, os.O_WRONLY)
        except (IndexError, FileNotFoundError):
            return self._create(trip)

    def _create(self, trip: int | str) -> tuple[str, int]:
        name = f"{trip}-{self._process}-{next(self._numbers)}"
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._made.set()
        return name, descriptor

    def receive(self, trip: int) -> PayloadFile:
        """Create the file of an upload that is written piece by piece."""
        try:
            name, descriptor = self._create(trip)
        except OSError as error:
            raise _failed(self._folder, error) from error
        return PayloadFile(descriptor, name)

    def temporary(self) -> PayloadFile:
        """Return a file in the folder of uploads, without a name."""
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                return PayloadFile(os.dup(file.fileno()))
        except OSError as error:
            raise _failed(self._folder, error) from error

    def sync(self) -> None:
        """Sync the folder if files were created in it."""
        if not self._made.is_set():
            return
        self._made.clear()
        try:
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._made.set()
            raise _failed(self._folder, error) from error

    def read(self, name: str, size: int, digest: bytes) -> np.ndarray:
        """Return the bytes of an upload, if they are the ones that were written."""
        file_name, _, place = name.partition(AT)
        path = self._folder / file_name
        try:
            with path.open("rb", buffering=0) as file:
                if place:
                    payload = np.frombuffer(bytearray(os.pread(file.fileno(), size, int(place))), np.uint8)
                    if len(payload) == size and digest_of(payload) == digest:
                        return payload
                elif size > IN_MEMORY:
                    whole = os.fstat(file.fileno()).st_size == size
                    if whole and digest_of_file(file.fileno()) == digest:
                        return as_array(mapped(file.fileno(), size))
                else:
                    payload = np.fromfile(file, np.uint8)
                    if len(payload) == size and digest_of(payload) == digest:
                        return payload
        except OSError as error:
            raise StoreError(f"{path} is gone, but the journal needs it ({error}); start a new run") from None
        raise StoreError(f"{path} is not what was acknowledged, of {size} bytes; start a new run")

    def recycle(self, names: Iterable[str]) -> None:
        """Let later uploads overwrite these files; delete those that are too many."""
        for name in filter(None, map(self._released, names)):
            if len(self._spare) < SPARE and self._is_small(name):
                self._spare.append(name)
            else:
                self.discard(name)

    def _is_small(self, name: str) -> bool:
        try:
            return (self._folder / name).stat().st_size <= LARGEST_SPARE
        except OSError:
            return False

    def discard(self, name: str) -> None:
        """Delete a payload, if it is still there. The file of several is deleted with the last of them."""
        file = self._released(name)
        if not file:
            return
        try:
            (self._folder / file).unlink(missing_ok=True)
        except OSError as error:
            raise _failed(self._folder, error) from error

    def _released(self, name: str) -> str:
        """Note that this payload is not needed any more, and return its file if that is free now, or ""."""
        file, _, place = name.partition(AT)
        if not place:
            return file
        with self._lock:
            left = self._places.get(file, set())
            if int(place) not in left:
                return ""  # it was released before
            left.remove(int(place))
            if left:
                return ""
            del self._places[file]
            return file

    def keep_only(self, names: set[str]) -> None:
        """Delete all files but those of these payloads."""
        kept, places = set(), defaultdict(set)
        for name in names:
            file, _, place = name.partition(AT)
            kept.add(file)
            if place:
                places[file].add(int(place))
        with self._lock:
            self._places = dict(places)
        try:
            others = [file.name for file in self._folder.iterdir() if file.name not in kept]
        except OSError as error:
            raise _failed(self._folder, error) from error
        for name in others:
            self.discard(name)


def _failed(folder: Path, error: OSError) -> StoreError:
    """Return the error for an operation that failed. Clients are shown it, so it contains no full path."""
    return StoreError(f"{folder.name}: {error.strerror or error}")
