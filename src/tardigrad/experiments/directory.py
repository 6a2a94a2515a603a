"""A run's directory: config, events, metrics, model, snapshot, summary."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tardigrad.core.events import (
    SCHEMA,
    Event,
    ModelEvaluated,
    RunStarted,
    TripGivenUp,
    UploadReceived,
    evaluations,
    event_of,
    read_events,
    to_record,
    write_events,
)
from tardigrad.core.plain_json import plain_json
from tardigrad.core.snapshot import BEGIN_AGAIN, read_snapshot, replace, write_snapshot, write_text
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config import Config

BACKUP = "put it back from a backup, or start a new run"
NEW_RUN = "start a new run: a private run must neither be repeated nor go on from a backup"
ACCEPT = "--accept-loss goes on without it"
BEFORE = "events.before"
"""The events that a dead server had recorded after its last snapshot, while recovery tells them again."""
_IN_USE: set[Path] = set()  # by this process: file locks are between processes


class RunDirectory:
    """Writes a run. What is on disk at any moment is enough to go on from the last snapshot."""

    def __init__(self, path: Path, live: bool = False, private: bool = False) -> None:
        """`live`: a served run, whose events are there to be read at once, and which goes on by itself.
        `private`: a run that must not be repeated, so that no error message may advise it."""
        self.path = path
        self._live = live
        self._again = f"--out {path}" if live else "--resume"
        self._repair = "start a new run" if live or private else "delete it and go on with --resume"
        self._advice = NEW_RUN if private else BACKUP if live else BEGIN_AGAIN
        self.events = path / "events.jsonl"
        self._lock: io.IOBase | None = None
        self._log: BinaryIO | None = None
        self._metrics = MetricsTable(path / "metrics.csv")
        self._before: list[bytes] = []  # lines that a dead server had recorded after its last snapshot
        self._recovering_from = 0  # the length of the events that are in the snapshot

    @property
    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run."""
        file = self.path / "summary.json"
        if not file.exists():
            return None
        try:
            summary = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{file} is damaged ({error}); {self._repair}") from None
        if not isinstance(summary, dict) or "model_sha256" not in summary:
            raise RunError(f"{file} is damaged (not a summary); {self._repair}")
        return summary

    def model(self) -> dict[str, Tensor]:
        """The model of a finished run."""
        file = self.path / "model.safetensors"
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{file} is damaged or gone ({error})") from None

    def create(self, config: Config, inputs: dict[str, str]) -> None:
        """Start afresh; refuses a folder that holds something already. `inputs`: fingerprints of what the
        config only names."""
        try:
            taken = self.path.exists() and (
                not self.path.is_dir() or any(file.name != ".lock" for file in self.path.iterdir())
            )
        except OSError as error:
            raise ConfigError(f"--out {self.path}: cannot be used ({error})") from None
        if taken:
            holds = "a run" if (self.path / "config.toml").exists() else "something"
            others = "" if self._live else ", or --resume to go on"
            raise ConfigError(f"--out {self.path}: already holds {holds}; give another folder{others}")
        try:
            # the folder of a server names its clients and holds their uploads
            self.path.mkdir(mode=0o700 if self._live else 0o777, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {self.path}: cannot be made ({error})") from None
        self._acquire()
        self._write_inputs(config, inputs)
        self._log = self.events.open("wb")
        self._record_start(config)

    def _write_inputs(self, config: Config, inputs: dict[str, str]) -> None:
        write_text(self.path / "inputs.json", json.dumps(inputs, indent=2) + "\n")
        write_text(self.path / "config.toml", config.to_toml())

    def reopen(
        self, config: Config, inputs: dict[str, str], accept_loss: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Go on with a run of the same config and inputs: return its snapshot, or None if it died before the
        first. `accept_loss`: go on although a part of the recorded events is damaged or gone."""
        stored_file = self.path / "config.toml"
        if not stored_file.exists() and (self.path / ".lock").exists():
            self._write_inputs(config, inputs)  # killed in its first moment
        if not stored_file.exists():
            raise ConfigError(f"--resume: {self.path} holds no run; leave --resume out to start one")
        self._acquire()
        try:
            stored = tomllib.loads(stored_file.read_text())
            stored_inputs = json.loads((self.path / "inputs.json").read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{stored_file} or inputs.json is damaged ({error}); start a new run") from None
        different = _differences(_decisive(stored), _decisive(tomllib.loads(config.to_toml())))
        if different:
            raise ConfigError(
                f"{self._again}: the config differs from that of {self.path} in {', '.join(different)}; "
                "go on with the same config, or start a new run"
            )
        changed = _differences(stored_inputs, inputs)
        if changed:
            raise ConfigError(
                f"{self._again}: {' and '.join(changed)} changed since {self.path} was begun; "
                "put that back, or start a new run"
            )
        if self.summary is not None:
            return None
        if self._live:
            write_text(stored_file, config.to_toml())  # with the limits as they are now
        file = self.path / "snapshot.safetensors"
        snapshot = read_snapshot(file, self._advice) if file.exists() else None
        length = 0 if snapshot is None else snapshot[1]["events_bytes"]
        if snapshot is None:
            self.events.touch()  # killed before it wrote any: begin afresh
        if not self.events.exists() or self.events.stat().st_size < length:
            if not accept_loss:
                raise RunError(
                    f"{self.events} is shorter than the snapshot says; "
                    + (ACCEPT if self._live else "start a new run")
                )
            self.events.touch()
        if self._live:
            length = self._check_events(length, accept_loss)
        self._log = self.events.open("r+b")
        self._log.truncate(length)
        self._log.seek(length)
        self._recovering_from = length
        self._metrics.begin(read_events(self.events))
        if snapshot is None:
            self._record_start(config)
        return snapshot

    def _check_events(self, length: int, accept_loss: bool) -> int:
        """Look at the events up to the snapshot and put those after it aside; return the length to keep.

        Recovery tells the events after the snapshot again; `unrecovered` compares. Meanwhile they are in a
        file of their own, because the server may be killed while it recovers.
        """
        aside = self.path / BEFORE
        with self.events.open("rb") as file:
            kept, tail = file.read(length), file.read()
        before = aside.read_bytes() if aside.exists() else b""
        told = (before + tail[: tail.rfind(b"\n") + 1]).splitlines(keepends=True)
        self._before = list(dict.fromkeys(told))
        partial = aside.with_name(aside.name + ".partial")
        partial.write_bytes(b"".join(self._before))
        replace(partial, aside)
        lines = kept.splitlines(keepends=True)
        good = [line for line in lines if event_of(line) is not None]
        if len(good) < len(lines):
            number = next(n for n, line in enumerate(lines, 1) if event_of(line) is None)
            if not accept_loss:
                raise RunError(f"{self.events}, line {number}: not an event; the file is damaged; {ACCEPT}")
            shutil.copyfile(self.events, self.path / "events.damaged")
            partial = self.events.with_name(self.events.name + ".partial")
            partial.write_bytes(b"".join(good))
            replace(partial, self.events)
        return sum(map(len, good))

    def unrecovered(self) -> list[dict[str, object]]:
        """Return the records of the uploads that a dead server had written after its last snapshot and that
        recovery, which has come to its end, has not written again: they were acknowledged and are lost."""
        if not self._before:
            return []
        assert self._log is not None
        self._log.flush()
        with self.events.open("rb") as file:
            file.seek(self._recovering_from)
            recovered = [event_of(line) for line in file]
        again = {event.trip for event in recovered if isinstance(event, UploadReceived | TripGivenUp)}
        before = [event for event in map(event_of, self._before) if isinstance(event, UploadReceived)]
        return [to_record(event) for event in before if event.trip not in again]

    def _record_start(self, config: Config) -> None:
        self.record([RunStarted(SCHEMA, config.seed, config.algorithm.oracle)])

    def record(self, events: list[Event]) -> None:
        """Append events."""
        assert self._log is not None
        write_events(self._log, events)
        for evaluation in evaluations(events):
            self._metrics.add(evaluation)
        if self._live:
            self._log.flush()

    def snapshot(self, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
        """Put a snapshot in the place of the last one."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        document = document | {"events_bytes": self._log.tell()}
        write_snapshot(self.path / "snapshot.safetensors", tensors, document)
        self._metrics.write()
        self._forget_before()

    def finish(self, model: dict[str, Tensor], summary: dict[str, Any]) -> None:
        """Write the model and the result; the summary comes last and says that all is there."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        partial = self.path / "model.safetensors.partial"
        save_file(model, partial)
        replace(partial, self.path / "model.safetensors")
        self._metrics.write()
        write_text(self.path / "summary.json", plain_json(summary, indent=2) + "\n")
        self._forget_before()

    def _forget_before(self) -> None:
        if self._before:
            self._before = []
            (self.path / BEFORE).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Put a text file into the folder, whole or not at all."""
        write_text(self.path / name, text)

    def close(self) -> None:
        """Let go of the files."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            _IN_USE.discard(self.path.resolve())

    def _acquire(self) -> None:
        busy = f"--out {self.path}: somebody else is running it right now"
        if self.path.resolve() in _IN_USE:  # opening the lock again would let go of it
            raise ConfigError(busy)
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"--out {self.path}: cannot be written to ({error})") from None
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, not inherited by workers
        except OSError:
            lock.close()
            raise ConfigError(busy) from None
        _IN_USE.add(self.path.resolve())
        self._lock = lock


class MetricsTable:
    """metrics.csv: a row for each evaluation, appended as they come. The events are the record; this file is
    made from them again whenever a run goes on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._columns: list[str] = []
        self._rows: list[dict[str, object]] = []  # not written yet

    def begin(self, events: Iterable[Event]) -> None:
        """Write the table of these events in the place of what there is."""
        self._columns, self._rows = [], []
        for evaluation in evaluations(events):
            self.add(evaluation)
        self._file.unlink(missing_ok=True)
        if self._rows:
            self.write()

    def add(self, evaluation: ModelEvaluated) -> None:
        """Add a row with the next `write`."""
        record = to_record(evaluation)
        del record["event"]
        self._rows.append(record)

    def write(self) -> None:
        """Append what is new. A new column, which is rare, takes writing the table anew."""
        new = dict.fromkeys(name for row in self._rows for name in row)
        text = io.StringIO()
        if not self._columns or new.keys() - set(self._columns):
            before = list(csv.DictReader(io.StringIO(self._file.read_text()))) if self._columns else []
            self._columns = list(dict.fromkeys([*self._columns, *new]))
            writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows([*before, *self._rows])
            write_text(self._file, text.getvalue())
        elif self._rows:
            writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writerows(self._rows)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(text.getvalue())
        self._rows = []


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    """What a run's result depends on: of the limits of a server, none but the population."""
    population = config.get("service", {}).get("population")
    return config | {"service": {"population": population}}


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(set(a) | set(b))
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
