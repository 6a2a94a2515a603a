"""The record of the versions that a private run has released: a digest of each, durable before publication.

The guarantee of a private run is for one history of models. If a step is repeated with other noise or from
other uploads, the two models together reveal more than was promised. That happens when a folder, or a part of
it, is restored from a backup, when a snapshot or the noise keys are deleted, or when two processes continue
from copies of one folder. Recovery repeats steps deterministically, so each repeated version must have the
digest that was recorded the first time. Any other digest ends the run before the version is published.

A folder that was restored as a whole looks consistent from inside. A copy is recognised by a witness: an
empty file that is never changed, whose inode and change time (which programs cannot set) are in the record. A
change that preserves both, such as a rollback of the file system, is detected only by the guard: a small file
outside the folder, which the backup of the folder must not include.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import torch
from blake3 import blake3

from tardigrad.core.files import sync_folder, write_text
from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError

NEW_RUN = "start a new run, for example from the last model; a private run must not be repeated"


class _GuardState(NamedTuple):
    """The contents of a guard: the run, and the last version that it released."""

    run: str
    generation: int
    version: int
    digest: str


class ReleaseLog:
    """The file `releases.log` of one run, and its guard.

    Lines: `run ID`, then `open GENERATION GUARDED INODE WITNESS-INODE WITNESS-CTIME` for each process that
    continued the run, and `VERSION DIGEST` for each version that was released.
    """

    def __init__(
        self, file: Path, guard: Path | None = None, moved: bool = False, begun: bool = False
    ) -> None:
        """Open the record, or create it. Raise a ConfigError if the run must not continue.

        `guard` is a file outside the run's folder that is compared with the record and kept up to date.
        `moved`: the caller knows that the folder was moved here and that no process continues the original.
        `begun`: the run has made steps, so its record must exist.
        """
        self._file, self._guard = file, guard
        self._run, self._generation, self._digests = "", 0, dict[int, str]()
        self._last = 0
        self._identity: list[str] = []  # of the record and its witness, as the last process found them
        self._guarded = False
        self._released_in = 0  # the generation that released the last version
        self._lock: io.IOBase | None = None
        whole = self._read() if os.path.lexists(file) else 0
        if not self._run and begun:
            raise ConfigError(f"{file}: the record of the released versions is gone; {NEW_RUN}")
        if self._identity and not moved and self._identity_now() != self._identity:
            raise ConfigError(
                f"{file}: the folder was copied or put back from a backup. If the original, or this folder "
                f"since the backup was made, has released a model, {NEW_RUN}. If the folder was only moved, "
                "and nobody goes on with the original, give --moved"
            )
        try:
            self._check_guard()
            self._log = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0)
            self._log.truncate(whole)
            self._log.seek(whole)
            if not self._run:
                self._run = secrets.token_hex(16)
                self._append(f"run {self._run}")
            if not self._identity or self._identity_now() != self._identity:
                self._witness.unlink(missing_ok=True)
                self._witness.touch(0o600)
                sync_folder(file.parent)
            self._generation += 1
            identity = " ".join(self._identity_now())
            self._append(f"open {self._generation} {int(guard is not None)} {identity}")
            self._write_guard()
        except OSError as error:
            self.close()
            raise ConfigError(f"{file} or its guard {guard} cannot be written ({error})") from None
        except BaseException:
            self.close()
            raise

    @property
    def last(self) -> int:
        """The newest version that was released."""
        return self._last

    def release(self, version: int, vectors: Vectors) -> None:
        """Record a version before it is published; raise a RunError if it was released with other values."""
        digest = digest_of(vectors)
        before = self._digests.get(version)
        if before is None and version == self._last + 1:
            self._digests[version], self._last = digest, version
            try:
                self._append(f"{version} {digest}")
                self._write_guard()
            except OSError as error:
                raise RunError(f"{self._file} or its guard cannot be written ({error})") from None
        elif before != digest:
            what = "was released before, with other values" if before else f"does not follow {self._last}"
            raise RunError(
                f"{self._file}: version {version} {what}. A part of the folder was lost or put back from a "
                f"backup; {NEW_RUN}"
            )

    @property
    def _witness(self) -> Path:
        return self._file.with_name(f".{self._file.name}.witness")

    def _identity_now(self) -> list[str]:
        """Return inodes and change time, which differ in a copied or restored folder."""
        if not self._witness.is_file():
            return []
        witness = self._witness.stat()
        return [str(self._file.stat().st_ino), str(witness.st_ino), str(witness.st_ctime_ns)]

    def close(self) -> None:
        """Close the files."""
        if hasattr(self, "_log"):
            self._log.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _append(self, line: str) -> None:
        self._log.write(line.encode() + b"\n")
        os.fsync(self._log.fileno())

    def _read(self) -> int:
        """Read the record and return the length of its complete lines. An incomplete line was never used."""
        try:
            content = self._file.read_bytes()
            *lines, rest = content.split(b"\n")
            for line in lines:
                words = line.decode().split()
                if words[0] == "run":
                    (self._run,) = words[1:]
                elif words[0] == "open":
                    self._generation, self._guarded = int(words[1]), words[2] == "1"
                    self._identity = words[3:]
                else:
                    self._last, self._released_in = int(words[0]), self._generation
                    self._digests[self._last] = words[1]
        except (OSError, ValueError, IndexError):
            raise ConfigError(f"{self._file} is damaged; {NEW_RUN}") from None
        return len(content) - len(rest)

    # -- the guard ---------------------------------------------------------------------------------

    def _check_guard(self) -> None:
        """Lock the guard, and raise a ConfigError if its history is not that of the record."""
        guard = self._guard
        if guard is None:
            if self._guarded:
                raise ConfigError(f"{self._file}: the run was begun with a guard; give the same --guard FILE")
            return
        if self._run and not self._guarded:
            raise ConfigError(
                "--guard: the run was begun without a guard, so none can vouch for it now; leave it out"
            )
        if not guard.name or guard.is_dir() or not guard.parent.is_dir():
            raise ConfigError(f"--guard {guard}: must be a file in a folder that exists")
        lock = self._lock = guard.with_name(guard.name + ".lock").open("w")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--guard {guard}: another process goes on with this run right now") from None
        if not self._run:
            if guard.exists():
                raise ConfigError(f"--guard {guard}: belongs to another run; give a new file for each run")
            return
        known = self._read_guard(guard)
        if known.run != self._run:
            raise ConfigError(
                f"--guard {guard}: belongs to another run; give the file that this run was begun with"
            )
        # A process that could not write its guard, or was killed before it did, has released nothing.
        if not self._released_in <= known.generation <= self._generation:
            raise ConfigError(f"--guard {guard}: another copy of the folder went on with this run; {NEW_RUN}")
        if known.version > self._last or self._digests.get(known.version, "") != known.digest:
            raise ConfigError(
                f"--guard {guard}: version {known.version} was released, but the folder knows of "
                f"{self._last} only: it was put back from a backup; {NEW_RUN}"
            )

    def _read_guard(self, guard: Path) -> _GuardState:
        try:
            known = json.loads(guard.read_text())
            types = {"run": str, "generation": int, "version": int, "digest": str}
            if {name: type(value) for name, value in known.items()} != types:
                raise ValueError("it is not a guard")
            return _GuardState(**known)
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"--guard {guard}: is gone or damaged ({error}); {NEW_RUN}") from None

    def _write_guard(self) -> None:
        if self._guard is not None:
            last = self._digests.get(self._last, "")
            state = _GuardState(self._run, self._generation, self._last, last)
            write_text(self._guard, json.dumps(state._asdict()) + "\n")


def digest_of(vectors: Vectors) -> str:
    """Return a digest of names, types, shapes and values."""
    digest = blake3()
    for name in sorted(vectors):
        vector = vectors[name].detach().cpu().contiguous()
        digest.update(f"{name} {vector.dtype} {tuple(vector.shape)}\n".encode())
        digest.update(vector.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
