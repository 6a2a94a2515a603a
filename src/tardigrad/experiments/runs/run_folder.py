"""A run's folder: config, events, metrics, model, snapshot, summary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tardigrad.core.event_log import SCHEMA, read_events, write_events
from tardigrad.core.events import Event, RunStarted, UploadReceived, evaluations
from tardigrad.core.files import replace, write_text
from tardigrad.core.folder_lock import LOCK, FolderLock
from tardigrad.core.plain_json import plain_json
from tardigrad.core.snapshot import BEGIN_AGAIN, read_snapshot, write_snapshot
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.event_recovery import EventRecovery, KeptEvents, check_events
from tardigrad.experiments.runs.fingerprints import Inputs
from tardigrad.experiments.runs.metrics_table import MetricsTable
from tardigrad.experiments.runs.same_run import check_same_run

BACKUP = "put it back from a backup, or start a new run"
NEW_RUN = "start a new run: a private run must neither be repeated nor go on from a backup"
ACCEPT = "--accept-loss goes on without what is missing"
FIRST_FILES = (LOCK, "inputs.json", "inputs.json.partial", "config.toml.partial")
"""Files that a run may have written before its config."""
SERVER_FILES = ("journal.sqlite", "status.json")
"""Files that only a server writes. The journal is deleted when the run is over."""
OWN_CODE = "own_code.py"
"""For the reader: the source of the classes of a run that are the user's own."""

Snapshot = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors, and a JSON document with everything else."""


class RunFolder:
    """The folder that records a run. At any moment its files are enough to go on from the last snapshot.

    A new run calls `create`. A run that goes on calls `reopen`, which changes nothing, and then `go_on`.
    """

    def __init__(self, path: Path, live: bool = False, private: bool = False) -> None:
        """`live`: a served run, whose events are flushed at once, and which goes on without `--resume`.
        `private`: a run that must not be repeated, so that no error message may advise it."""
        self.path = path
        self._live = live
        self._again = f"--out {path}" if live else "--resume"
        self._repair = "start a new run" if live or private else "delete it and go on with --resume"
        self._advice = NEW_RUN if private else BACKUP if live else BEGIN_AGAIN
        self.events = path / "events.jsonl"
        self._lock = FolderLock(path)
        self._log: BinaryIO | None = None
        self._metrics = MetricsTable(path / "metrics.csv")
        self._recovery = EventRecovery(self.events)
        self._files_to_write: list[tuple[str, str]] = []
        self._kept = KeptEvents(0, [], [])
        self._start: Config | None = None
        self._advice_on_events = NEW_RUN if private else ACCEPT if live else "start a new run"

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run, or None if it is not finished."""
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
        """Return the model of a finished run."""
        file = self.path / "model.safetensors"
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{file} is damaged or gone ({error})") from None

    def create(self, config: Config, inputs: Inputs) -> None:
        """Create the folder and begin to write; raise a ConfigError if it holds something already. `inputs`:
        fingerprints of what the config only names."""
        try:
            taken = self.path.exists() and (
                not self.path.is_dir() or any(file.name != LOCK for file in self.path.iterdir())
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
        self._lock.acquire()
        for name, text in _first_files(config, inputs):
            write_text(self.path / name, text)
        self._log = self.events.open("wb")
        self._record_start(config)

    def reopen(self, config: Config, inputs: Inputs, accept_loss: bool = False) -> Snapshot | None:
        """Lock the folder of a run of the same config and inputs, and return its snapshot if it has one.

        No file is changed before `go_on`. `accept_loss`: go on although recorded events are damaged or
        missing.
        """
        stored_file = self.path / "config.toml"
        self._files_to_write = []
        if not stored_file.exists():
            if not (self.path / LOCK).exists():
                raise ConfigError(f"--resume: {self.path} holds no run; leave --resume out to start one")
            left = sorted(file.name for file in self.path.iterdir() if file.name not in FIRST_FILES)
            if left:  # so it was not killed while it wrote its first files
                raise RunError(
                    f"{stored_file} is gone, so it is not known what {left[0]} belongs to; put it back from "
                    "a backup, or start a new run"
                )
            self._files_to_write = _first_files(config, inputs)
        self._lock.acquire()
        self._check_driver()
        if stored_file.exists():
            check_same_run(self.path, config, inputs, self._again)
            if self._live:  # the limits of a server may have changed
                self._files_to_write = [("config.toml", config.to_toml())]
        if self.summary is not None:
            return None
        file = self.path / "snapshot.safetensors"
        snapshot: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        if file.exists():
            snapshot = read_snapshot(file, self._advice)
        length = 0 if snapshot is None else snapshot[1]["events_bytes"]
        size = self.events.stat().st_size if self.events.is_file() else 0
        if size < length and not accept_loss:
            raise RunError(f"{self.events} is shorter than the snapshot says; {self._advice_on_events}")
        self._kept = KeptEvents(length, [], [])
        if self._live and self.events.exists():
            self._kept = check_events(self.events, length, accept_loss, self._advice_on_events)
        self._start = config if snapshot is None else None
        return snapshot

    def _check_driver(self) -> None:
        """Raise a ConfigError if a simulation would go on with the run of a server, or a server with that of
        a simulation: each would delete what the other has recorded."""
        served = any((self.path / name).exists() for name in SERVER_FILES)
        if self._live and not served and self.summary is not None:
            raise ConfigError(f"--out {self.path}: holds a simulated run; give another folder")
        if not self._live and served and self.summary is None:
            raise ConfigError(
                f"--resume: {self.path} holds the run of a server; `tardigrad serve` with the same --out "
                "goes on with it"
            )

    def go_on(self) -> None:
        """Begin to write to a run that was reopened; its events are cut back to the snapshot."""
        for name, text in self._files_to_write:
            write_text(self.path / name, text)
        kept = self._kept
        self._recovery.begin(kept)
        self.events.touch()
        self._log = self.events.open("r+b")
        self._log.truncate(kept.length)
        self._log.seek(kept.length)
        self._metrics.begin(read_events(self.events))
        if self._start is not None:
            self._record_start(self._start)

    def unrecovered(self) -> list[UploadReceived]:
        """Return the uploads that a dead server had recorded after its last snapshot and that recovery, which
        is complete, has not repeated: they were acknowledged and are lost."""
        assert self._log is not None
        return self._recovery.unrecovered(self._log)

    def recovered(self) -> None:
        """Accept the events as they are: recovery has repeated all, or their loss was accepted."""
        assert self._log is not None
        self._recovery.complete(self._log)

    def _record_start(self, config: Config) -> None:
        metric, oracle = config.evaluation.metric, config.algorithm.oracle
        self.record([RunStarted(SCHEMA, config.seed, oracle, metric.name, metric.lower_is_better)])

    def record(self, events: list[Event]) -> None:
        """Append events."""
        assert self._log is not None
        write_events(self._log, events)
        for evaluation in evaluations(events):
            self._metrics.add(evaluation)
        if self._live:
            self._log.flush()

    def flush(self) -> None:
        """Let readers of the folder see all events so far."""
        assert self._log is not None
        self._log.flush()

    def snapshot(self, tensors: dict[str, Tensor], document: Mapping[str, object]) -> None:
        """Replace the last snapshot."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        whole = dict(document) | {"events_bytes": self._log.tell()}
        write_snapshot(self.path / "snapshot.safetensors", tensors, whole)
        self._metrics.write()

    def finish(self, model: dict[str, Tensor], summary: Mapping[str, object]) -> None:
        """Write the model and the summary; the summary comes last and marks the run as finished."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        partial = self.path / "model.safetensors.partial"
        save_file(model, partial)
        replace(partial, self.path / "model.safetensors")
        self._metrics.write()
        write_text(self.path / "summary.json", plain_json(summary, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a text file into the folder, atomically."""
        write_text(self.path / name, text)

    def close(self) -> None:
        """Close the files and unlock the folder; if recovery was refused, restore the events."""
        if self._log is not None:
            self._recovery.undo(self._log)
            self._log.close()
        self._lock.release()


def _first_files(config: Config, inputs: Inputs) -> list[tuple[str, str]]:
    """Return the names and texts of the files that a run begins with; the config comes last."""
    return [("inputs.json", json.dumps(inputs, indent=2) + "\n"), ("config.toml", config.to_toml())]
