"""The large values of a helper, each in a file: the state of repeated steps, released sums, noise.

The database says which number of each value counts. A value is written, durably, before the transaction that
makes it count, and the one before is deleted after it. So the two change together.
"""

from __future__ import annotations

import os
from pathlib import Path

from tardigrad.core.files import sync_folder

ZEROS = bytes(1 << 20)


class LargeValues:
    """Files `NAME-NUMBER.bin` in a folder.

    >>> import tempfile
    >>> values = LargeValues(Path(tempfile.mkdtemp()))
    >>> values.store("step", 1, b"one"), values.store("step", 2, b"two"), values.keep("step", 2)
    (None, None, None)
    >>> values.load("step", 2), values.load("step", 1)
    (b'two', b'')
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self._folder = folder

    def _file(self, name: str, number: int) -> Path:
        return self._folder / f"{name}-{number}.bin"

    def store(self, name: str, number: int, content: bytes | memoryview) -> None:
        """Write a value durably."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(self._file(name, number), flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)

    def load(self, name: str, number: int) -> bytes:
        """Return a value; b"" if there is none of this number."""
        file = self._file(name, number)
        return file.read_bytes() if file.exists() else b""

    def keep(self, name: str, number: int, secret: bool = False) -> None:
        """Delete all values of this name but the one of this number. Secret ones are overwritten before."""
        for file in self._folder.glob(f"{name}-*.bin"):
            if file != self._file(name, number):
                if secret:
                    _overwrite(file)
                file.unlink()


def _overwrite(file: Path) -> None:
    """Replace all bytes by zeros, on the disk."""
    with file.open("r+b") as opened:
        rest = file.stat().st_size
        while rest > 0:
            rest -= opened.write(ZEROS[:rest])
        opened.flush()
        os.fsync(opened.fileno())
