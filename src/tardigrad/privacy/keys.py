"""The keys of noise that was drawn since the last snapshot.

Nothing may get noise twice: with two draws for one step, the average of both has less noise, and their
difference tells what was hidden. A run that is killed and resumed makes the steps since its last snapshot
again; it must add the very same noise. So each step's key is on disk before its noise is used, and is
destroyed once a snapshot of a run that has made the step holds what came of it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tardigrad.core.files import replace, sync_folder
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
        self._asked: set[int] = set()  # since the last `forget`
        self._whole: int | None = None  # so many bytes of the file are good, where it does not end well
        self._lock = threading.Lock()
        if file is not None and file.exists():
            self._read(file)

    def __getitem__(self, number: int) -> bytes:
        with self._lock:
            self._asked.add(number)
            if number not in self._keys:
                key = os.urandom(LENGTH)
                if self._file is not None:
                    self._append(number, key)  # it counts only once it is on disk
                self._keys[number] = key
            return self._keys[number]

    def __contains__(self, number: int) -> bool:
        """Whether the key of this step or trip is known."""
        return number in self._keys

    def normals(self, number: int) -> Cryptographic:
        """Where the normal numbers of this step or trip come from."""
        return Cryptographic(self[number])

    def forget(self) -> None:
        """Destroy the keys asked for so far: what was made with them is in a snapshot, or the run is over.

        To be called on the thread that makes steps, as soon as the snapshot is durable and before the next
        step, so that no key of a later step is among them. Keys that a dead process drew and this one has not
        asked for yet are kept, because their noise was released.
        """
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._keys = {number: key for number, key in self._keys.items() if number not in self._asked}
        self._asked.clear()
        if self._file is None:
            return
        partial = self._file.with_name(self._file.name + ".partial")
        if self._keys:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(_line(number, key) for number, key in self._keys.items())
            replace(partial, self._file)
            self._whole = None
        else:
            self._file.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)

    def _append(self, number: int, key: bytes) -> None:
        assert self._file is not None
        line = _line(number, key)
        new = not self._file.exists()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if self._whole is not None:
                os.ftruncate(descriptor, self._whole)
                self._whole = None
            if os.write(descriptor, line) != len(line):
                raise RunError(f"{self._file} cannot be written; without it noise could be added twice")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:  # its name must last, too
            sync_folder(self._file.parent)

    def _read(self, file: Path) -> None:
        text = file.read_bytes()
        *lines, rest = text.split(b"\n")
        if rest:  # never finished, and so never used
            self._whole = len(text) - len(rest)
        for line in lines:
            number, key = _number_and_key(line)
            if key is None or self._keys.setdefault(number, key) != key:
                raise RunError(
                    f"{file} is damaged; going on would add noise twice to one step. Start a new run"
                )


def _line(number: int, key: bytes) -> bytes:
    return f"{number} {key.hex()}\n".encode()


def _number_and_key(line: bytes) -> tuple[int, bytes | None]:
    """What a line says; no key if it says none."""
    try:
        number, text = line.split()
        key = bytes.fromhex(text.decode())
        return int(number), key if len(key) == LENGTH else None
    except ValueError:
        return -1, None
