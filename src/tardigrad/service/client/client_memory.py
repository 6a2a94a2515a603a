"""A client's memory on its own disk.

A trained trip is saved as pending before its upload is delivered. Its memory replaces the old one only when
the server has accepted the upload. A client that is killed in between delivers again, and gets the same
answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tardigrad.core.files import partial_of, write_text
from tardigrad.core.snapshot import read_snapshot, recycle_snapshot, write_snapshot
from tardigrad.core.upload import Upload, Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.access.enrolment import NAME
from tardigrad.service.protocol.wire import digest_of

LARGEST_SPARE = 1 << 24
"""Larger files are deleted: they would take much space."""
RUN_NAME = "run-name"
"""In the folder of a run: its name, if the server has several."""
PENDING = re.compile(r"pending-(0|[1-9][0-9]*)\.safetensors")


@dataclass(frozen=True)
class TrainedUpload:
    """A trained trip: the upload, and the memory to commit if the upload is accepted."""

    trip: int
    version: int
    upload: Upload
    memory: Vectors
    metrics: dict[str, float]
    evaluated: int
    epoch: int = 0
    """The epoch of the task. Files of older clients have none."""
    encoding: str = ""
    """The kind of the encoding of the upload; "" if it has none."""
    seeds: tuple[bytes, ...] = ()
    """In a secure run, the seeds of the masks that are on the upload, one for each helper."""

    @cached_property
    def digest(self) -> bytes:
        """The digest of the vectors as they are sent."""
        return digest_of(self.upload.vectors)


class ClientMemory:
    """The folder in which one client keeps its state of one run."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """`name`: of the run, on a server with several. It is kept for `kept_runs`."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"--state {folder}: cannot be used ({error.strerror}); give a folder of your own"
            ) from None
        if name:
            write_text(folder / RUN_NAME, name + "\n")
        file = folder / "memory.safetensors"
        self.memory: Vectors = read_snapshot(file)[0] if file.exists() else {}
        """The vectors that the client keeps between its trips."""
        self._count = folder / "contributions"
        self._spare = folder / "spare"

    @property
    def contributions(self) -> int:
        """The number of uploads with local noise that this client has made in the run."""
        try:
            return int(self._count.read_text()) if self._count.exists() else 0
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._count} is damaged ({error}); how often this client took part is not known any more, "
                "so it cannot go on in this run"
            ) from None

    def count_contribution(self) -> None:
        """Count an upload with local noise; the count is on disk before the upload is sent."""
        write_text(self._count, f"{self.contributions + 1}\n")

    def pending(self) -> list[TrainedUpload]:
        """Return the trained trips that the server has not answered yet."""
        found = (PENDING.fullmatch(file.name) for file in self._folder.iterdir())
        trips = sorted(int(name[1]) for name in found if name)  # other files are left alone
        return [_read(self._file(trip)) for trip in trips]

    def keep(self, finished: TrainedUpload) -> None:
        """Save a trained trip as pending, before it is delivered."""
        upload = finished.upload
        tensors = {f"upload/{n}": v for n, v in upload.vectors.items()}
        tensors |= {f"memory/{n}": v for n, v in finished.memory.items()}
        document = {
            "trip": finished.trip, "version": finished.version, "metrics": finished.metrics,
            "evaluated": finished.evaluated, "examples": upload.examples, "steps": upload.steps,
            "loss": upload.loss, "names": list(upload.vectors), "epoch": finished.epoch,
            "encoding": finished.encoding, "seeds": [seed.hex() for seed in finished.seeds],
        }  # fmt: skip
        file = self._file(finished.trip)
        if self._spare.exists():
            self._spare.replace(partial_of(file))  # and is written over
        write_snapshot(file, tensors, document)

    def commit(self, finished: TrainedUpload) -> None:
        """Replace the memory by that of this trip, because its upload was accepted."""
        self.memory = finished.memory
        write_snapshot(self._folder / "memory.safetensors", self.memory, {"trip": finished.trip})
        self.drop(finished.trip)

    def drop(self, trip: int) -> None:
        """Remove the pending trip. A small file is kept for the next one, without its seeds."""
        file = self._file(trip)
        if file.exists() and file.stat().st_size <= LARGEST_SPARE:
            recycle_snapshot(file, self._spare)
        else:
            file.unlink(missing_ok=True)

    def _file(self, trip: int) -> Path:
        return self._folder / f"pending-{trip}.safetensors"


def kept_runs(state: Path) -> list[str]:
    """Return the names of runs, on servers with several, for which a client keeps uploads that were not
    answered. `state`: the folder of all its memories."""
    found = []
    for folder in sorted(state.iterdir()) if state.is_dir() else ():
        if (folder / RUN_NAME).is_file() and any(PENDING.fullmatch(file.name) for file in folder.iterdir()):
            name = (folder / RUN_NAME).read_text(encoding="utf-8", errors="replace").strip()
            found += [name] if NAME.fullmatch(name) else []
    return found


def _read(file: Path) -> TrainedUpload:
    mapped, found = read_snapshot(file)
    tensors = {name: vector.clone() for name, vector in mapped.items()}  # the file may be written over
    document = cast(dict[str, Any], found)
    if "names" not in document:
        raise RunError(f"{file}: is not a trip that a client has trained; remove it")
    upload = Upload(
        {name: tensors[f"upload/{name}"] for name in document["names"]},
        document["examples"], document["steps"], document["loss"],
    )  # fmt: skip
    prefix = "memory/"
    memory = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
    return TrainedUpload(
        document["trip"], document["version"], upload, memory, document["metrics"], document["evaluated"],
        document.get("epoch", 0), document.get("encoding", ""),
        tuple(bytes.fromhex(seed) for seed in document.get("seeds", ())),
    )  # fmt: skip
