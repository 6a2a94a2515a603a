"""A run's directory: config, events, metrics, model, snapshot, summary."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import logging
import os
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
from tardigrad.experiments.config.schema import Config

BACKUP = "put it back from a backup, or start a new run"
NEW_RUN = "start a new run: a private run must neither be repeated nor go on from a backup"
ACCEPT = "--accept-loss goes on without what is missing"
DAMAGED = "events.damaged"
FIRST_FILES = (".lock", "inputs.json", "inputs.json.partial", "config.toml.partial")
"""What a run may have written before its config."""
log = logging.getLogger("tardigrad.experiments")
BEFORE = "events.before"
"""The events that a dead server had recorded after its last snapshot, while recovery tells them again."""
_IN_USE: set[Path] = set()  # by this process: file locks are between processes


class RunFolder:
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
        self._recovered = False
        self._files_to_write: list[tuple[str, str]] = []
        self._kept = _Events(0, [], [])
        self._start: Config | None = None
        self._advice_on_events = NEW_RUN if private else ACCEPT if live else "start a new run"

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
        write_text(self.path / "inputs.json", _json(inputs))
        write_text(self.path / "config.toml", config.to_toml())

    def reopen(
        self, config: Config, inputs: dict[str, str], accept_loss: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Look at a run of the same config and inputs, and return its snapshot, or None if it died before the
        first. Nothing is changed before `go_on`. `accept_loss`: go on although a part of the recorded events
        is damaged or gone."""
        stored_file = self.path / "config.toml"
        self._files_to_write = []
        if not stored_file.exists():
            if not (self.path / ".lock").exists():
                raise ConfigError(f"--resume: {self.path} holds no run; leave --resume out to start one")
            left = sorted(file.name for file in self.path.iterdir() if file.name not in FIRST_FILES)
            if left:  # not killed in its first moment
                raise RunError(
                    f"{stored_file} is gone, so it is not known what {left[0]} belongs to; put it back from "
                    "a backup, or start a new run"
                )
            self._files_to_write = [("inputs.json", _json(inputs)), ("config.toml", config.to_toml())]
        self._acquire()
        if stored_file.exists():
            self._compare(stored_file, config, inputs)
            if self._live:  # with the limits as they are now
                self._files_to_write = [("config.toml", config.to_toml())]
        if self.summary is not None:
            return None
        file = self.path / "snapshot.safetensors"
        snapshot = read_snapshot(file, self._advice) if file.exists() else None
        length = 0 if snapshot is None else snapshot[1]["events_bytes"]
        size = self.events.stat().st_size if self.events.is_file() else 0
        if size < length and not accept_loss:
            raise RunError(f"{self.events} is shorter than the snapshot says; {self._advice_on_events}")
        self._kept = _Events(length, [], [])
        if self._live and self.events.exists():
            self._kept = self._look_at_events(length, accept_loss)
        self._start = config if snapshot is None else None
        return snapshot

    def _compare(self, stored_file: Path, config: Config, inputs: dict[str, str]) -> None:
        """Raise a ConfigError if the run was begun with another config or other inputs."""
        try:
            stored = tomllib.loads(stored_file.read_text())
            stored_inputs = json.loads((self.path / "inputs.json").read_text())
            if not stored:
                raise ValueError("config.toml is empty")
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

    def _look_at_events(self, length: int, accept_loss: bool) -> _Events:
        """Compare the recorded events with the snapshot; return what to keep of them."""
        aside = self.path / BEFORE
        with self.events.open("rb") as file:
            kept, tail = file.read(length), file.read()
        before = aside.read_bytes() if aside.is_file() else b""
        told = (before + tail[: tail.rfind(b"\n") + 1]).splitlines(keepends=True)
        lines = kept.splitlines(keepends=True)
        bad = [number for number, line in enumerate(lines, 1) if event_of(line) is None]
        if bad and not accept_loss:
            raise RunError(
                f"{self.events}, line {bad[0]}: not an event; the file is damaged; {self._advice_on_events}"
            )
        good = [line for line in lines if event_of(line) is not None]
        if bad or len(kept) < length:
            log.error(
                "%s is damaged: %d bytes are missing and %d lines are no events; the file is kept as %s",
                self.events, length - len(kept), len(bad), DAMAGED, extra={"event": "loss"},
            )  # fmt: skip
        damaged = good if bad or len(kept) < length else []
        return _Events(sum(map(len, good)), damaged, list(dict.fromkeys(told)))

    def go_on(self) -> None:
        """Begin to write to a run that was reopened: cut the events back to the snapshot.

        Recovery of a served run tells the events after the snapshot again, and `unrecovered` compares.
        Meanwhile they are in a file of their own, because the server may be killed while it recovers.
        """
        for name, text in self._files_to_write:
            write_text(self.path / name, text)
        kept = self._kept
        if kept.damaged:
            shutil.copyfile(self.events, self.path / DAMAGED)
            self._replace(self.events, kept.damaged)
        if kept.before:
            self._replace(self.path / BEFORE, kept.before)
            self._before = kept.before
        self.events.touch()
        self._log = self.events.open("r+b")
        self._log.truncate(kept.length)
        self._log.seek(kept.length)
        self._recovering_from = kept.length
        self._metrics.begin(read_events(self.events))
        if self._start is not None:
            self._record_start(self._start)

    def _replace(self, file: Path, lines: list[bytes]) -> None:
        partial = file.with_name(file.name + ".partial")
        partial.write_bytes(b"".join(lines))
        replace(partial, file)

    def unrecovered(self) -> list[UploadReceived]:
        """Return the uploads that a dead server had written after its last snapshot and that
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
        return [event for event in before if event.trip not in again]

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

    def recovered(self) -> None:
        """All that was recorded before was told again, or its loss was accepted."""
        self._recovered = True

    def write(self, name: str, text: str) -> None:
        """Put a text file into the folder, whole or not at all."""
        write_text(self.path / name, text)

    def close(self) -> None:
        """Let go of the files. If recovery was refused, the events are as they were before."""
        if self._log is not None:
            if self._before and not self._recovered:
                self._log.truncate(self._recovering_from)
                self._log.seek(self._recovering_from)
                self._log.writelines(self._before)
                (self.path / BEFORE).unlink(missing_ok=True)
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


class _Events(NamedTuple):
    """What to keep of the events of a run that is reopened."""

    length: int
    """Bytes of the events that are in the snapshot."""
    damaged: list[bytes]
    """Where some lines are damaged: those that are not."""
    before: list[bytes]
    """Lines that a dead server had recorded after its last snapshot."""


def _json(inputs: dict[str, str]) -> str:
    return json.dumps(inputs, indent=2) + "\n"


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
