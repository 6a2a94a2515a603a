"""The keys of the noise that was drawn since the last snapshot.

No sum may be released with two different draws of noise, because the average of the two has less noise. A run
that was killed and is resumed repeats the steps since its last snapshot, and must add exactly the same noise.
So the key of each step is written to disk before its noise is used. It is destroyed once a snapshot contains
the result of the step.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tardigrad.core.files import replace, sync_folder
from tardigrad.errors import RunError
from tardigrad.privacy.normal import Cryptographic

LENGTH = 32
"""The length of a key in bytes."""


class NoiseKeys:
    """A new random key for each number (a step or a trip); the same key if a number is requested again.

    >>> keys = NoiseKeys()
    >>> keys[1] == keys[1], keys[1] == keys[2]
    (True, False)
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._keys: dict[int, bytes] = {}
        self._asked: set[int] = set()  # since the last `forget`
        self._whole: int | None = None  # the length of the complete lines, if the last line is incomplete
        self._lock = threading.Lock()
        if file is not None and file.exists():
            self._read(file)

    def __getitem__(self, number: int) -> bytes:
        with self._lock:
            self._asked.add(number)
            if number not in self._keys:
                key = os.urandom(LENGTH)
                if self._file is not None:
                    self._append(number, key)  # durable before it is used
                self._keys[number] = key
            return self._keys[number]

    def __contains__(self, number: int) -> bool:
        """Return whether there is a key for this step or trip."""
        return number in self._keys

    def normals(self, number: int) -> Cryptographic:
        """Return the generator of the normal numbers of this step or trip."""
        return Cryptographic(self[number])

    def forget(self) -> None:
        """Destroy the keys requested so far, because a snapshot contains their results or the run is over.

        Call it on the thread that makes steps, after the snapshot is durable and before the next step, so
        that no key of a later step is destroyed. Keys that an earlier process drew and this one has not
        requested yet are kept, because their noise was released.
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
        """Write a key durably at the end of the file."""
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
        if new:  # the directory entry must be durable, too
            sync_folder(self._file.parent)

    def _read(self, file: Path) -> None:
        """Read the keys that an earlier process left; raise a RunError if the file is damaged."""
        text = file.read_bytes()
        *lines, rest = text.split(b"\n")
        if rest:  # an incomplete line, whose key was never used
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
    """Parse a line; the key is None if the line is malformed."""
    try:
        number, text = line.split()
        key = bytes.fromhex(text.decode())
        return int(number), key if len(key) == LENGTH else None
    except ValueError:
        return -1, None
