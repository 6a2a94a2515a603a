"""A client's memory on its own disk.

What a trip would change is written as pending before the upload is delivered, and takes its place only when
the server has said that the upload counts. A client that is killed in between asks again: the answer to a
delivery is always the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tardigrad.core.files import write_text
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.core.upload import Upload, Vectors
from tardigrad.errors import ConfigError, RunError

PENDING = re.compile(r"pending-(0|[1-9][0-9]*)\.safetensors")


@dataclass(frozen=True)
class TrainedUpload:
    """A trip that was trained: what to upload, and what to remember if it counts."""

    trip: int
    version: int
    upload: Upload
    memory: Vectors
    metrics: dict[str, float]
    evaluated: int
    epoch: int = 0
    """Of the task. Files of older clients have none."""


class ClientMemory:
    """One client's folder for one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"--state {folder}: cannot be used ({error})") from None
        file = folder / "memory.safetensors"
        self.memory: Vectors = read_snapshot(file)[0] if file.exists() else {}
        """What the client keeps between its trips."""
        self._count = folder / "contributions"

    @property
    def contributions(self) -> int:
        """How many uploads with local noise this client has made in the run, sent or about to be sent."""
        try:
            return int(self._count.read_text()) if self._count.exists() else 0
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._count} is damaged ({error}); how often this client took part is not known any more, "
                "so it cannot go on in this run"
            ) from None

    def count_contribution(self) -> None:
        """One more upload with local noise; durable before the upload is sent."""
        write_text(self._count, f"{self.contributions + 1}\n")

    def pending(self) -> list[TrainedUpload]:
        """Trips that were trained and whose fate we have not heard."""
        found = (PENDING.fullmatch(file.name) for file in self._folder.iterdir())
        trips = sorted(int(name[1]) for name in found if name)  # what is not called so is not ours
        return [_finished(self._file(trip)) for trip in trips]

    def keep(self, finished: TrainedUpload) -> None:
        """Before the delivery."""
        upload = finished.upload
        tensors = {f"upload/{n}": v for n, v in upload.vectors.items()}
        tensors |= {f"memory/{n}": v for n, v in finished.memory.items()}
        document = {
            "trip": finished.trip, "version": finished.version, "metrics": finished.metrics,
            "evaluated": finished.evaluated, "examples": upload.examples, "steps": upload.steps,
            "loss": upload.loss, "names": list(upload.vectors), "epoch": finished.epoch,
        }  # fmt: skip
        write_snapshot(self._file(finished.trip), tensors, document)

    def commit(self, finished: TrainedUpload) -> None:
        """The upload counts."""
        self.memory = finished.memory
        write_snapshot(self._folder / "memory.safetensors", self.memory, {"trip": finished.trip})
        self.drop(finished.trip)

    def drop(self, trip: int) -> None:
        """It does not, or all is done."""
        self._file(trip).unlink(missing_ok=True)

    def _file(self, trip: int) -> Path:
        return self._folder / f"pending-{trip}.safetensors"


def _finished(file: Path) -> TrainedUpload:
    tensors, found = read_snapshot(file)
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
        document.get("epoch", 0),
    )  # fmt: skip
