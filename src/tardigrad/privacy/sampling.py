"""The secret key from which Poisson sampling draws the clients of each step.

Sampling amplifies privacy only while nobody knows who joined. So the clients are drawn by AES-256 in counter
mode, with one key for the whole run. The key is written to disk before the first draw, because a resumed run
must draw the same clients again. It is deleted when the run is over.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tardigrad.core.files import replace
from tardigrad.errors import RunError
from tardigrad.privacy.normal import stream

LENGTH = 32
"""The length of a key in bytes."""


class SamplingKey:
    """Uniform 64-bit numbers that are a function of the key and an index.

    >>> key = SamplingKey()
    >>> bool((key.bits(7, 3) == key.bits(7, 3)).all()), bool((key.bits(7, 3) == key.bits(8, 3)).any())
    (True, False)
    """

    def __init__(self, file: Path | None = None, begun: bool = False) -> None:
        """Read the key from `file`, or draw a new one and write it there.

        `begun`: the run may have released steps, so a missing file is an error. Without a file, the key is
        kept in memory only.
        """
        if file is None:
            self._key = os.urandom(LENGTH)
        elif file.exists():
            self._key = _read(file)
        elif begun:
            raise RunError(
                f"{file} is gone; going on would draw other clients for steps that have their noise; put it "
                "back from a backup, or start a new run"
            )
        else:
            self._key = os.urandom(LENGTH)
            _write(file, self._key)

    def bits(self, index: int, count: int) -> NDArray[np.uint64]:
        """Return `count` uniform 64-bit numbers for this index."""
        start = index.to_bytes(8) + bytes(8)  # no two draws share a block of the counter
        return np.frombuffer(stream(self._key, start).update(bytes(8 * count)), dtype=np.uint64)


def _write(file: Path, key: bytes) -> None:
    """Write the key durably and atomically, readable by the owner alone."""
    partial = file.with_name(file.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(key.hex().encode() + b"\n")
    replace(partial, file)


def _read(file: Path) -> bytes:
    """Return the key in the file, or raise a RunError if it is damaged."""
    try:
        key = bytes.fromhex(file.read_text())
    except (OSError, ValueError):
        key = b""
    if len(key) != LENGTH:
        raise RunError(
            f"{file} is damaged; going on would draw other clients for steps that have their noise; put it "
            "back from a backup, or start a new run"
        )
    return key
