"""The keys of noise that was drawn since the last snapshot.

Nothing may get noise twice: with two draws for one step, the average of both has less noise, and their
difference tells what was hidden. A run that is killed and resumed makes the steps since its last snapshot
again; it must add the very same noise. So each step's key is on disk before its noise is used, and is
destroyed once a snapshot holds what came of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tardigrad.errors import RunError
from tardigrad.privacy.normal import Cryptographic

LENGTH = 32


class NoiseKeys:
    """A fresh key for each number (a step or a trip) that is asked for; the same one if it is asked again.

    >>> keys = NoiseKeys()
    >>> keys[1] == keys[1], keys[1] == keys[2]
    (True, False)
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._keys: dict[int, bytes] = {}
        if file is not None and file.exists():
            self._read(file)

    def __getitem__(self, number: int) -> bytes:
        if number not in self._keys:
            self._keys[number] = os.urandom(LENGTH)
            if self._file is not None:
                self._append(number)
        return self._keys[number]

    def normals(self, number: int) -> Cryptographic:
        """Where the normal numbers of this step or trip come from."""
        return Cryptographic(self[number])

    def forget(self) -> None:
        """All that they made is in a snapshot, or the run is over."""
        self._keys.clear()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _append(self, number: int) -> None:
        assert self._file is not None
        line = f"{number} {self._keys[number].hex()}\n".encode()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, file: Path) -> None:
        lines = file.read_bytes().split(b"\n")
        for line in lines[:-1]:  # the last one is empty, or was never finished and so never used
            try:
                number, key = line.split()
                self._keys[int(number)] = bytes.fromhex(key.decode())
            except ValueError:
                raise RunError(
                    f"{file} is damaged; going on would add noise twice to one step. Start a new run"
                ) from None
