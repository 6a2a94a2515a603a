"""A run's directory: config, events, metrics, model, snapshot, summary."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tardigrad.core.plain_json import plain_json
from tardigrad.core.snapshot import BEGIN_AGAIN, read_snapshot, replace, write_snapshot, write_text
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config import Config

Event = dict[str, Any]
SCHEMA = 1
BACKUP = "put it back from a backup, or start a new run"
_IN_USE: set[Path] = set()  # by this process: file locks are between processes


class RunDirectory:
    """Writes a run. What is on disk at any moment is enough to go on from the last snapshot."""

    def __init__(self, path: Path, live: bool = False) -> None:
        """`live`: a served run, whose events are there to be read at once, and which goes on by itself."""
        self.path = path
        self._live = live
        self._again = f"--out {path}" if live else "--resume"
        self._repair = "start a new run" if live else "delete it and go on with --resume"
        self.events = path / "events.jsonl"
        self._lock: io.IOBase | None = None
        self._log: BinaryIO | None = None

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
            self.path.mkdir(parents=True, exist_ok=True)
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
        self, config: Config, inputs: dict[str, str]
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Go on with a run of the same config and inputs: its snapshot, or nothing if it died before the
        first."""
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
        snapshot = read_snapshot(file, BACKUP if self._live else BEGIN_AGAIN) if file.exists() else None
        length = 0 if snapshot is None else snapshot[1]["events_bytes"]
        if snapshot is None:
            self.events.touch()  # killed before it wrote any: begin afresh
        if not self.events.exists() or self.events.stat().st_size < length:
            raise RunError(f"{self.events} is shorter than the snapshot says; start a new run")
        self._log = self.events.open("r+b")
        self._log.truncate(length)
        self._log.seek(length)
        if snapshot is None:
            self._record_start(config)
        return snapshot

    def _record_start(self, config: Config) -> None:
        start = {"event": "start", "schema": SCHEMA, "seed": config.seed, "oracle": config.algorithm.oracle}
        self.record([start])

    def record(self, events: list[Event]) -> None:
        """Append events."""
        assert self._log is not None
        for event in events:
            self._log.write(plain_json(event).encode() + b"\n")
        if self._live:
            self._log.flush()

    def snapshot(self, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
        """Put a snapshot in the place of the last one."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        document = document | {"events_bytes": self._log.tell()}
        write_snapshot(self.path / "snapshot.safetensors", tensors, document)
        self._write_metrics()

    def finish(self, model: dict[str, Tensor], summary: dict[str, Any]) -> None:
        """Write the model and the result; the summary comes last and says that all is there."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        partial = self.path / "model.safetensors.partial"
        save_file(model, partial)
        replace(partial, self.path / "model.safetensors")
        self._write_metrics()
        write_text(self.path / "summary.json", plain_json(summary, indent=2) + "\n")

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

    def _write_metrics(self) -> None:
        rows = [event for event in read_events(self.events) if event["event"] == "evaluation"]
        columns = list(dict.fromkeys(name for row in rows for name in row if name != "event"))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())


def read_events(file: Path) -> Iterator[Event]:
    """The events of a run, in order; a last line that was cut off is left out."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict) or "event" not in event:
                raise RunError(f"{file}, line {number}: not an event; the file is damaged")
            yield event


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    """What a run's result depends on: of the limits of a server, none but the population."""
    population = config.get("service", {}).get("population")
    return config | {"service": {"population": population}}


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(set(a) | set(b))
        return [d for n in names for d in _differences(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
